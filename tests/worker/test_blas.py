"""The shim that gives MLX a fast BLAS: real compilers, real processes, real products. Linux."""

import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bramley.worker import blas
from bramley.worker.blas import default_threads, preload, usable_cores

PROBE = Path(__file__).parents[1] / "support" / "blas_probe.py"
NUMPY_SYMBOLS = ("cblas_sgemm64_", "cblas_dgemm64_", "cblas_cgemm64_", "openblas_set_num_threads64_")


def start(cache: Path, mode: str = "auto", threads: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROBE), str(cache), mode, str(threads)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


def found(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, _ = process.communicate()
    assert process.returncode == 0
    result: dict[str, Any] = json.loads(output)
    return result


def built(cache: Path) -> list[str]:
    return [path.name for path in (cache / "blas").iterdir()]


@pytest.fixture
def other_numpy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the one numpy is installed in, with no library yet."""
    libraries = tmp_path / "site" / "numpy.libs"
    libraries.mkdir(parents=True)
    monkeypatch.setattr(np, "__file__", str(tmp_path / "site" / "numpy" / "__init__.py"))
    return libraries


def compile_library(source: str, path: Path) -> None:
    subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(path)], input=source, text=True, check=True)


def test_mlx_computes_through_the_shim_and_computes_right(tmp_path: Path) -> None:
    first = found(start(tmp_path))
    assert first["name"].startswith(f"OpenBLAS of numpy {np.__version__} (")
    assert first["notes"][0].startswith(f"Products run on {first['name']} with {first['threads']} thread")
    assert first["products"] == 6
    assert not first["loaded_mlx"], "MLX must find the shim already there"
    assert not first["global"], "OpenBLAS's own symbols must not get in the way of other libraries"
    names = built(tmp_path)
    assert len(names) == 1
    stamp = (tmp_path / "blas" / names[0]).stat().st_mtime_ns
    assert found(start(tmp_path))["products"] == 6
    assert (tmp_path / "blas" / names[0]).stat().st_mtime_ns == stamp, "it is built once"


def test_four_starts_at_once_all_get_a_whole_library(tmp_path: Path) -> None:
    processes = [start(tmp_path) for _ in range(4)]
    assert [found(process)["products"] for process in processes] == [6] * 4
    assert len(built(tmp_path)) == 1


def test_a_damaged_library_is_built_again(tmp_path: Path) -> None:
    found(start(tmp_path))
    (name,) = built(tmp_path)
    (tmp_path / "blas" / name).write_bytes(b"\x7fELF")
    assert found(start(tmp_path))["products"] == 6
    assert built(tmp_path) == [name]


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_set_before_the_first_product(tmp_path: Path, threads: int) -> None:
    result = found(start(tmp_path, threads=threads))
    assert result["threads"] == threads
    assert result["numpy_threads"] == 1, "OpenBLAS's own would spin"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_by_default_a_core_is_left_to_others_where_there_are_more_than_two(
    monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(blas, "usable_cores", lambda: cores)
    assert default_threads() == threads


def test_off_leaves_mlx_alone(tmp_path: Path) -> None:
    result = found(start(tmp_path, "off"))
    assert (result["name"], result["products"], result["notes"]) == ("MLX's own", 0, [])
    assert not (tmp_path / "blas").exists()


def test_cores_are_those_the_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1), ("", 8)])
def test_cores_are_no_more_than_a_container_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(blas, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    assert usable_cores() == cores


def shim_of(cache: Path, threads: int) -> ctypes.CDLL:
    found(start(cache, threads=1))
    (path,) = (cache / "blas").glob("*.so")
    shim = ctypes.CDLL(str(path))
    shim.bramley_blas_set_threads(threads)
    return shim


Matrix = np.ndarray[tuple[int, int], np.dtype[np.float32]]


def multiply(
    shim: ctypes.CDLL, left: Matrix, right: Matrix, inner: int, scale: float, kept: float, out: Matrix
) -> None:
    """``out`` = kept ``out`` + scale ``left`` ``right``^T, of ``inner`` numbers of each row."""
    shim.cblas_sgemm(
        *map(ctypes.c_int, (101, 111, 112, len(left), len(right), inner)),
        ctypes.c_float(scale),
        *(left.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(left.shape[1])),
        *(right.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(right.shape[1])),
        ctypes.c_float(kept),
        *(out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(out.shape[1])),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_products_of_few_rows_are_right_at_odd_sizes(tmp_path: Path, threads: int) -> None:
    shim = shim_of(tmp_path, threads)
    random = np.random.default_rng(0)
    sizes = [(rows, 70, columns) for rows in (*range(1, 14), 33, 95, 128, 129) for columns in (15, 16, 17, 64, 83)]
    sizes += [(4, inner, 21) for inner in (1, 7, 8, 9, 15, 16, 17, 2047, 2048, 2049, 4100)]
    for rows, inner, columns in [*sizes, (32, 600, 1001), (7, 2100, 517), (130, 300, 1001), (300, 65, 900)]:
        for scale, kept in ((1.0, 0.0), (0.5, 1.0), (-2.0, 0.3)):
            # rows are longer than what is computed of them, and what is not kept may be anything
            left, right = (random.standard_normal((n, inner + 3), dtype=np.float32) for n in (rows, columns))
            out = random.standard_normal((rows, columns + 2), dtype=np.float32)
            wanted = out.astype(np.float64)
            wanted[:, :columns] = kept * wanted[:, :columns] + scale * (left[:, :inner] @ right[:, :inner].T)
            if kept == 0:
                out[0, 0] = np.nan
            multiply(shim, left, right, inner, scale, kept, out)
            assert np.allclose(out, wanted, rtol=1e-4, atol=1e-3), (rows, inner, columns)


def test_few_rows_give_the_same_numbers_with_any_number_of_threads_and_in_any_place(tmp_path: Path) -> None:
    shim = shim_of(tmp_path, 1)
    random = np.random.default_rng(1)
    left, right = (random.standard_normal((n, 576), dtype=np.float32) for n in (32, 4001))
    alone = np.zeros((32, 4001), np.float32)
    multiply(shim, left, right, 576, 1, 0, alone)
    for threads in (2, 5):
        shim.bramley_blas_set_threads(threads)
        shared = np.zeros((32, 4001), np.float32)
        multiply(shim, left, right, 576, 1, 0, shared)
        assert np.array_equal(alone, shared)
    for rows in (1, 2, 3, 5, 7, 31):
        few = np.zeros((rows, 4001), np.float32)
        multiply(shim, np.ascontiguousarray(left[-rows:]), right, 576, 1, 0, few)
        assert np.array_equal(few, alone[-rows:]), "a row's numbers do not depend on those beside it"


def test_threads_that_multiply_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    shim = shim_of(tmp_path, 3)
    random = np.random.default_rng(2)
    pairs = [[random.standard_normal((n, 300), dtype=np.float32) for n in (rows, 1000)] for rows in (3, 32, 150)]
    wanted = [left @ right.T for left, right in pairs]
    wrong: list[int] = []

    def work(which: int) -> None:
        left, right = pairs[which]
        for _ in range(200):
            out = np.zeros((len(left), 1000), np.float32)
            multiply(shim, left, right, 300, 1, 0, out)
            if not np.allclose(out, wanted[which], rtol=1e-4, atol=1e-3):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_helping_threads_sleep_when_there_is_nothing_to_do(tmp_path: Path) -> None:
    shim = shim_of(tmp_path, 4)
    left = np.ones((32, 512), np.float32)
    right = np.ones((4096, 512), np.float32)
    multiply(shim, left, right, 512, 1, 0, np.zeros((32, 4096), np.float32))
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.1


def test_without_a_compiler_a_note_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    report = preload(tmp_path, "auto", 0)
    assert report.name == "MLX's own" and report.products() == 0
    assert report.notes == (
        "There is no C compiler (install one, as with `apt install gcc`), so products run on MLX's own BLAS, which "
        "reads prompts some 20 times slower.",
    )


def test_a_compiler_that_fails_is_quoted_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'shim.c:1:1: fatal error: dlfcn.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = preload(tmp_path / "cache", "auto", 0).notes
    assert "could not build the BLAS shim (shim.c:1:1: fatal error: dlfcn.h: No such file), so products" in note
    assert built(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (note,) = preload(tmp_path / "file", "auto", 0).notes
    assert "cannot be built in" in note and "another cache directory helps" in note


def test_a_numpy_without_a_library_of_its_own_is_named(tmp_path: Path, other_numpy: Path) -> None:
    (note,) = preload(tmp_path, "auto", 0).notes
    assert note.startswith("This numpy has no OpenBLAS of its own (install it with pip), so products")


def test_a_library_without_the_symbols_is_not_used(tmp_path: Path, other_numpy: Path) -> None:
    compile_library("int nothing;", other_numpy / "libscipy_openblas64_-0.so")
    (note,) = preload(tmp_path, "auto", 0).notes
    assert note.startswith("numpy's OpenBLAS lacks a function the BLAS shim needs")


def test_a_file_that_is_no_library_is_not_used(tmp_path: Path, other_numpy: Path) -> None:
    (other_numpy / "libscipy_openblas64_-0.so").write_text("no library")
    (note,) = preload(tmp_path, "auto", 0).notes
    assert note.startswith("numpy's OpenBLAS lacks a function the BLAS shim needs")


def test_a_library_that_computes_wrong_products_never_reaches_mlx(tmp_path: Path, other_numpy: Path) -> None:
    functions = "".join(f"void scipy_{name}(void) {{}}\n" for name in NUMPY_SYMBOLS)
    core = 'char *scipy_openblas_get_corename64_(void) { return "wrong"; }'
    compile_library(functions + core, other_numpy / "libscipy_openblas64_-0.so")
    report = preload(tmp_path, "auto", 0)
    assert report.name == "MLX's own"
    assert report.notes[0].startswith("numpy's OpenBLAS computes wrong products on this processor")


def test_macos_and_cuda_have_a_fast_blas_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mlx_cuda_13-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: mlx-cuda-13\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert preload(tmp_path, "auto", 3) == blas.BlasReport("CUDA", 3)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert preload(tmp_path, "auto", 3) == blas.BlasReport("Accelerate", 3)
    assert not (tmp_path / "blas").exists()
