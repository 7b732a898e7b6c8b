"""The seam between the worker process and what a modality computes. Imports no MLX."""

from typing import Protocol

from bramley.domain.wire import FailureKind, FrontMessage, Load, Phase, Ready, Stats, ToFront


class Host(Protocol):
    """What the worker process offers its runner. Both methods are for the main thread, never wait and never raise."""

    def emit(self, message: ToFront) -> None:
        """Send a message to the front."""

    def progress(self, phase: Phase, done: float, total: float, note: str = "", job: int = 0) -> None:
        """Say how far a long task is. Counts as a sign of life; at most ten a second are sent, the last one always."""


class Runner(Protocol):
    """One loaded model. The worker's main loop calls every method, on the main thread, which owns MLX.

    ``load`` comes first and once. Then messages are handled as they arrive, and ``step`` is called as long as
    ``has_work``: each call should take a fraction of a second, because cancellations are seen between two calls.
    """

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do; if not, the process sleeps until the next message."""

    @property
    def phase(self) -> Phase:
        """What the next ``step`` does."""

    def load(self, load: Load, host: Host) -> Ready:
        """Load the model and keep ``host``. Raises ModelLoadError with one sentence for the user; MemoryError when it
        does not fit; anything else is reported as a failed load too. The process ends after that.
        """

    def handle(self, message: FrontMessage) -> None:
        """Take one message. A request that cannot be served is answered with Failed; nothing is raised for it."""

    def step(self) -> None:
        """Compute a little and emit what came of it. May raise anything; ``abort`` follows."""

    def abort(self, kind: FailureKind, reason: str) -> None:
        """Fail everything in flight, free what it held, and be ready for new messages. ``reason`` is for the user."""

    def shutdown(self) -> None:
        """End everything in flight as cancelled. Nothing is called afterwards."""

    def stats(self) -> Stats:
        """Cheap; asked for at every change of load."""


# MLX and the Metal driver say it in the text only. The last one is what MLX says when malloc gave it no buffer to
# read a file into; files that are too short are found before.
_OUT_OF_MEMORY = (
    "unable to allocate",
    "out of memory",
    "insufficient memory",
    "[read] unable to read from file",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in _OUT_OF_MEMORY)
