"""How much memory there is to load a model into."""

import contextlib
import os
from pathlib import Path
from typing import Final

from bramley.domain.memory import usable_bytes

_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def usable_memory() -> int:
    """Bytes weights may take: nine tenths of the machine's memory, or of its container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # no such file without a container, and the word "max" in one without a limit
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(_CGROUP_LIMIT.read_text(encoding="ascii")))
    return usable_bytes(total)
