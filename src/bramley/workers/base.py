"""What the service knows of a worker. A local process today; a process on another machine could stand here too."""

from collections.abc import Callable
from typing import Protocol

from bramley.domain.wire import Ready, Stats, Submit
from bramley.workers.stream import TokenStream


class WorkerHandle(Protocol):
    """A loaded model that answers. Used on the event loop only; none of its methods waits for the worker."""

    @property
    def ready(self) -> Ready: ...

    @property
    def stats(self) -> Stats: ...

    @property
    def active(self) -> int:
        """Sequences that have been submitted and have not ended."""
        ...

    def submit(self, make: Callable[[int], Submit], buffer_tokens: int) -> TokenStream:
        """Start a sequence. ``make`` is given its number. The stream fails with WorkerDied if the worker ends."""
        ...
