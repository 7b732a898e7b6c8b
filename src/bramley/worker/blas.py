"""The BLAS under MLX on Linux without a GPU: a shim that takes MLX's products to the OpenBLAS inside numpy's wheel.

MLX's Linux wheel computes with the reference BLAS; docs/performance.md says what that costs. A library that is
in the process's global scope before MLX is loaded takes its place; so nothing here imports MLX, and ``preload``
runs before anything else does.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import numpy as np

_SOURCE: Final = Path(__file__).with_name("blas_shim.c")
_KERNEL: Final = Path(__file__).with_name("blas_skinny.h")
_COMPILERS: Final = ("cc", "gcc", "clang", "c++", "g++", "clang++")
_COMPILE_TIMEOUT_S: Final = 60
_ROW_MAJOR: Final = 101
_PLAIN: Final = 111
_TRANSPOSED: Final = 112
_SHARED_CORES: Final = 2
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_SLOW: Final = "so products run on MLX's own BLAS, which reads prompts some 20 times slower"


@dataclass(frozen=True)
class BlasReport:
    """``name`` of the BLAS in use, its ``threads``, and sentences for the log and /health."""

    name: str
    threads: int
    notes: tuple[str, ...] = ()
    shim: ctypes.CDLL | None = None

    def products(self) -> int:
        """How many products went through the shim so far; stays 0 when MLX does not use it, or without one."""
        return int(ctypes.c_ulong.in_dll(self.shim, "bramley_blas_calls").value) if self.shim else 0


class _UnusableError(Exception):
    """The shim cannot be had; the text says why and what to do, as the beginning of a sentence."""


def preload(cache_dir: Path, mode: Literal["auto", "off"], threads: int) -> BlasReport:
    """Load the shim, built first if need be and kept under ``cache_dir``/blas. To be called before MLX is imported.

    ``threads`` 0: as many as ``default_threads`` says. Never raises:
    whatever fails leaves MLX on its own BLAS, and a note says so.
    """
    count = threads or default_threads()
    if mode == "off":
        return BlasReport("MLX's own", count)
    if sys.platform != "linux":
        return BlasReport("Accelerate", count)
    if _has_cuda():
        return BlasReport("CUDA", count)
    try:
        library = _numpy_library()
        path = _shim(cache_dir / "blas", library)
        shim = _checked(path, count)
    except _UnusableError as error:
        return BlasReport("MLX's own", 1, (f"{error}, {_SLOW}.",))
    core = shim.bramley_blas_core().decode("ascii", "replace")
    name = f"OpenBLAS of numpy {metadata.version('numpy')} ({core})"
    note = f"Products run on {name} with {count} {'thread' if count == 1 else 'threads'}."
    return BlasReport(name, count, (note,), shim)


def default_threads() -> int:
    """One less than the usable cores, for the front, but two where there are two: the front needs little of one."""
    cores = usable_cores()
    return cores if cores <= _SHARED_CORES else cores - 1


def usable_cores() -> int:
    """Cores this process may use: its affinity, and in a container no more than its share of time."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def _has_cuda() -> bool:
    """Whether an MLX for CUDA is installed; its packages are named mlx-cuda-12, mlx-cuda-13 and so on."""
    names = (package.name or "" for package in metadata.distributions())
    return any(name.lower().replace("_", "-").startswith("mlx-cuda") for name in names)


def _numpy_library() -> Path:
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    libraries = sorted(folder.glob("libscipy_openblas64_*.so*"))
    if not libraries:
        raise _UnusableError("This numpy has no OpenBLAS of its own (install it with pip)")
    return libraries[0]


def _shim(folder: Path, library: Path) -> Path:
    """Path of the compiled shim for ``library``; its name holds all that it depends on."""
    key = hashlib.sha256(_SOURCE.read_bytes() + _KERNEL.read_bytes())
    for part in (metadata.version("numpy"), str(library), str(library.stat().st_size), os.uname().machine):
        key.update(b"\0" + part.encode())
    path = folder / f"shim-{key.hexdigest()[:16]}.so"
    if not path.exists() or not _opens(path):
        _compile(path, library)
    return path


def _opens(path: Path) -> bool:
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _compile(path: Path, library: Path) -> None:
    """Compile into a temporary file and rename it, so that two starts at once cannot see half a library."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise _UnusableError("There is no C compiler (install one, as with `apt install gcc`)")
    quoted = str(library).replace("\\", "\\\\").replace('"', '\\"')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=path.parent) as folder:
            built = Path(folder) / path.name
            flags = ["-O3", "-shared", "-fPIC", "-pthread", f'-DBRAMLEY_BLAS="{quoted}"']
            command = [compiler, *flags, str(_SOURCE), "-o", str(built), "-ldl"]
            result = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_TIMEOUT_S
            )
            if result.returncode != 0:
                lines = [line for line in result.stderr.splitlines() if "error" in line] or ["no reason given"]
                raise _UnusableError(f"{compiler} could not build the BLAS shim ({lines[0].strip()})")
            with built.open("rb") as file:
                os.fsync(file.fileno())  # half a library, after a power loss, would end the process that maps it
            built.rename(path)
    except OSError as error:
        why = error.strerror or error
        raise _UnusableError(
            f"The BLAS shim cannot be built in {path.parent} ({why}; another cache directory helps)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise _UnusableError(f"{compiler} took more than {_COMPILE_TIMEOUT_S} s over the BLAS shim") from error


def _checked(path: Path, threads: int) -> ctypes.CDLL:
    """The shim in the global scope, its threads set; first it must compute right while still out of it."""
    try:
        shim = ctypes.CDLL(str(path))
        if not shim.bramley_blas_ready():
            raise _UnusableError("numpy's OpenBLAS lacks a function the BLAS shim needs (another numpy may have it)")
        # before the first product: OpenBLAS spins on every core it was given
        shim.bramley_blas_set_threads(threads)
        if not _computes_right(shim):
            raise _UnusableError("numpy's OpenBLAS computes wrong products on this processor (another numpy may not)")
        shim = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        shim.bramley_blas_core.restype = ctypes.c_char_p
        return shim
    except (OSError, AttributeError) as error:
        raise _UnusableError(
            f"The BLAS shim {path} cannot be loaded ({error}; remove it to have it built again)"
        ) from error


def _computes_right(shim: ctypes.CDLL) -> bool:
    """Compare float32 products with sums made without any BLAS: even and odd sizes, each operand transposed too."""
    random = np.random.default_rng(0)
    for rows, inner, columns in ((64, 96, 128), (1, 576, 96), (7, 33, 129), (5, 2100, 83)):
        left = random.standard_normal((rows, inner)).astype(np.float32)
        right = random.standard_normal((inner, columns)).astype(np.float32)
        wanted = np.einsum("ij,jk->ik", left.astype(np.float64), right.astype(np.float64), optimize=False)
        for turn_left, turn_right in ((False, False), (False, True), (True, False)):
            got = _product(shim, left, right, turn_left, turn_right)
            if not np.allclose(got, wanted, rtol=1e-4, atol=1e-3):
                return False
    return True


def _product(
    shim: ctypes.CDLL,
    left: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    right: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    turn_left: bool,
    turn_right: bool,
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """``left`` (rows, inner) times ``right`` (inner, columns), either handed over in transposed storage."""
    rows, inner = left.shape
    columns = right.shape[1]
    out = np.full((rows, columns), np.nan, np.float32)
    stored_left = np.ascontiguousarray(left.T if turn_left else left)
    stored_right = np.ascontiguousarray(right.T if turn_right else right)
    shim.cblas_sgemm(
        ctypes.c_int(_ROW_MAJOR),
        ctypes.c_int(_TRANSPOSED if turn_left else _PLAIN),
        ctypes.c_int(_TRANSPOSED if turn_right else _PLAIN),
        *(ctypes.c_int(size) for size in (rows, columns, inner)),
        ctypes.c_float(1.0),
        stored_left.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(stored_left.shape[1]),
        stored_right.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(stored_right.shape[1]),
        ctypes.c_float(0.0),
        out.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int(columns),
    )
    return out
