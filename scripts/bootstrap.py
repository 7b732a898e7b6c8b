"""Makes .venv what the requirements files say: ``bootstrap.py run|dev|uv``.

``run`` is what serving needs, ``dev`` adds what tests and checks need, ``uv`` only prints the path of uv. Standard
library only: it runs before anything is installed. A stamp written last says what .venv holds, so a second call costs
a hash of the files and an interrupted one starts over; a lock makes a second make wait for the first.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".bramley-stamp"
TOOLS = ROOT / ".uv"
REQUIREMENTS = ROOT / "requirements"
FILES = {
    "run": (REQUIREMENTS / "run.txt", REQUIREMENTS / "model.txt"),
    "dev": (REQUIREMENTS / "dev.txt", REQUIREMENTS / "model.txt"),
}
# Settings of the caller's shell that would send an installation elsewhere.
FOREIGN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_REQUIRE_HASHES",
)


class SetupError(Exception):
    """Set-up cannot go on; the message is one line for the user."""


class Stamp(NamedTuple):
    """``level`` is what was installed, ``fingerprint`` from which files and where. Both empty: nothing usable."""

    level: str
    fingerprint: str


def main(arguments: Sequence[str]) -> int:
    """Exit code 0 when .venv is ready for ``arguments[0]``, else 1 and one line on stderr."""
    wanted = arguments[0]
    try:
        check_platform()
        if wanted == "uv":
            with locked():
                sys.stdout.write(f"{find_uv()}\n")
        elif not is_ready(wanted):
            with locked():
                if not is_ready(wanted):
                    install("dev" if read_stamp().level == "dev" else wanted)
    except SetupError as error:
        return fail(str(error))
    except subprocess.CalledProcessError as error:
        return fail(f"{Path(error.cmd[0]).name} ended with code {error.returncode}; its last lines above say why")
    except OSError as error:
        return fail(f"{error.strerror}: {error.filename} (the set-up writes into {ROOT})")
    except KeyboardInterrupt:
        return 130
    return 0


def fail(message: str) -> int:
    say(f"error: {message}")
    return 1


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def check_platform() -> None:
    """Names the machines MLX has no wheels for, which an installer would only call a missing version."""
    system, machine = platform.system(), platform.machine()
    if system not in ("Darwin", "Linux"):
        raise SetupError(f"MLX runs on macOS and Linux, not on {system}")
    if system == "Darwin" and machine != "arm64":
        raise SetupError(f"MLX needs Apple silicon and an arm64 Python; this Python is {machine}")


def is_ready(wanted: str) -> bool:
    stamp = read_stamp()
    return stamp.level in (wanted, "dev") and stamp.fingerprint == fingerprint(stamp.level)


def read_stamp() -> Stamp:
    if not (VENV / "bin" / "python").exists() or not STAMP.exists():
        return Stamp("", "")
    level, _, found = STAMP.read_text().strip().partition(" ")
    return Stamp(level, found) if level in FILES else Stamp("", "")


def fingerprint(level: str) -> str:
    """Hash of the pins, of what ``pip install -e`` reads, and of the folder, since scripts hold its absolute path."""
    digest = hashlib.sha256(os.fsencode(ROOT))
    for path in (*FILES[level], ROOT / "pyproject.toml"):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def locked() -> Iterator[None]:
    """One set-up at a time in this folder; the system lets go of the lock when its holder ends, however it ends."""
    with (ROOT / ".setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another set-up in this folder to finish.")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(level: str) -> None:
    say(f"Setting up {VENV.name}: the first time this downloads about 200 MB.")
    uv = find_uv()
    python = str(VENV / "bin" / "python")
    if read_stamp() == Stamp("", "") or not is_here():
        make_environment(VENV, "--without-pip")
    STAMP.unlink(missing_ok=True)
    environment = uv_environment()
    pins = [str(path) for path in FILES[level]]
    run([uv, "pip", "sync", "--python", python, "--require-hashes", *pins], environment)
    editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    run([uv, "pip", "install", "--quiet", "--python", python, *editable], environment)
    write_stamp(Stamp(level, fingerprint(level)))


def is_here() -> bool:
    """False when the folder was moved or copied after the set-up: the scripts in .venv name the old place."""
    script = VENV / "bin" / "bramley"
    return script.exists() and os.fsencode(VENV) in script.read_bytes()


def make_environment(folder: Path, *options: str) -> None:
    # This very program may run in the environment that is about to be replaced.
    base = getattr(sys, "_base_executable", sys.executable)
    shutil.rmtree(folder, ignore_errors=True)
    run([base, "-m", "venv", *options, str(folder)], clean_environment())


def write_stamp(stamp: Stamp) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(f"{stamp.level} {stamp.fingerprint}\n")
    unfinished.replace(STAMP)


def find_uv() -> str:
    """The uv on PATH if it runs, else a private one in .uv, installed by pip at first."""
    for candidate in (shutil.which("uv"), str(TOOLS / "bin" / "uv")):
        if candidate and runs(candidate):
            return candidate
    make_environment(TOOLS)
    pins = str(REQUIREMENTS / "uv.txt")
    options = ["--quiet", "--disable-pip-version-check", "--require-hashes", "--requirement", pins]
    # A user's `pip config set install.user true` would fail inside a virtual environment.
    run([str(TOOLS / "bin" / "python"), "-m", "pip", "install", *options], {**clean_environment(), "PIP_USER": "0"})
    return str(TOOLS / "bin" / "uv")


def runs(program: str) -> bool:
    try:
        return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN}


def uv_environment() -> dict[str, str]:
    environment = clean_environment()
    environment.setdefault("UV_HTTP_TIMEOUT", "180")
    if "UV_CACHE_DIR" not in environment and not has_writable_cache(environment):
        environment["UV_CACHE_DIR"] = str(TOOLS / "cache")
    return environment


def has_writable_cache(environment: dict[str, str]) -> bool:
    """False without a home, or with one that cannot be written."""
    try:
        base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        cache = Path(base) / "uv"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    return os.access(cache, os.W_OK)


def run(command: list[str], environment: dict[str, str]) -> None:
    """Raises CalledProcessError; what the command prints goes to stderr, so that stdout stays the caller's."""
    subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
