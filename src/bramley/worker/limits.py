"""A limit that a library sets for the whole process, and should not."""

import contextlib
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def keep_descriptor_limit() -> Iterator[None]:
    """mlx-lm, when it is imported, sets the limit of open files to 4096.

    That lowers a higher limit, and fails where the system allows less. Within this block the call does nothing.
    """
    original = resource.setrlimit
    resource.setrlimit = lambda *_: None
    try:
        yield
    finally:
        resource.setrlimit = original
