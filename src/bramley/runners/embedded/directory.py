"""Builds a directory once, whole or not at all, also when two processes want it at the same time."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bramley.domain.errors import ModelLoadError

_LOCK: Final = ".lock"
_PREFIX: Final = ".building-"
_POLL_S: Final = 0.2
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# macOS: fsync alone leaves data in the drive's own cache
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


def build_once(
    target: Path,
    nbytes: int,
    build: Callable[[Path], None],
    complete: Callable[[Path], bool],
    waiting: Callable[[], None],
) -> None:
    """Make ``target`` unless it is ``complete``: ``build`` fills a temporary sibling, which is then renamed.

    ``nbytes`` is the space it takes. One process builds at a time; the others call ``waiting`` some times a second
    and use what it built. What a killed one left is removed. Raises
    ModelLoadError when the file system does not allow it or is full.
    """
    if complete(target):
        return
    parent = target.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / _LOCK, waiting):
            if complete(target):
                return
            _sweep(parent, target)
            _require_space(parent, nbytes)
            temporary = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            try:
                build(temporary)
                for file in sorted(temporary.iterdir()):
                    _sync(file)
                _sync(temporary)
                temporary.rename(target)
                _sync(parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_space(parent, nbytes) from error
        raise ModelLoadError(
            f"The model cannot be built in {parent} ({error.strerror or error}): choose another cache directory."
        ) from error


@contextmanager
def _locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """The lock belongs to the open file, so that it goes with the process however that ends."""
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                time.sleep(_POLL_S)
        yield


def _sweep(parent: Path, target: Path) -> None:
    """Remove what killed builders left, and a target that is not complete. Only called under the lock."""
    if target.exists():
        target.rename(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    for stale in parent.glob(f"{_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)


def _require_space(parent: Path, nbytes: int) -> None:
    if shutil.disk_usage(parent).free < nbytes:
        raise _no_space(parent, nbytes)


def _no_space(parent: Path, nbytes: int) -> ModelLoadError:
    return ModelLoadError(
        f"There is no room in {parent} for the model, which takes {nbytes / 1e6:.0f} MB: free some, or choose "
        "another cache directory."
    )


def _sync(path: Path) -> None:
    """Return when the file's or directory's data is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if _FULL_SYNC is not None:
            # some file systems, network shares among them, do not know it
            with suppress(OSError):
                fcntl.fcntl(descriptor, _FULL_SYNC)
    finally:
        os.close(descriptor)
