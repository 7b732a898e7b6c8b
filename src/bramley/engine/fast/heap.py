"""glibc's heap, told to keep what is freed.

A buffer of a few MiB that comes from the system anew is cleared page by page, which takes longer than an elementwise
operation on it, and a forward pass asks for hundreds. glibc learns to keep such buffers, but hands free memory at the
end of the heap back each time.
"""

import ctypes
from typing import Final

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 512 << 20
_KEPT_BUFFER_BYTES: Final = 64 << 20


def keep_freed_buffers() -> bool:
    """Keep up to 512 MiB, and buffers up to 64 MiB each, for the life of the process; False without glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_MMAP_THRESHOLD, _KEPT_BUFFER_BYTES))
    return all([mallopt(parameter, size) for parameter, size in settings])
