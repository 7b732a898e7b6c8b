"""What the main thread is doing, readable from another thread at any moment."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bramley.domain.wire import Phase


@dataclass(frozen=True, slots=True)
class Beat:
    """``count`` grows with every stamp; ``at`` is its time in seconds on the clock's scale."""

    phase: Phase
    count: int
    at: float


class PhaseClock:
    """Stamped by the main thread, read by the IO thread.

    The two meet in one reference to an immutable value, which is swapped in one operation: no lock, no torn reads.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat = Beat("starting", 0, clock())

    def stamp(self, phase: Phase) -> None:
        """Say what begins now. Call it whenever there is progress, also within a phase."""
        self._beat = Beat(phase, self._beat.count + 1, self._clock())

    @property
    def beat(self) -> Beat:
        return self._beat

    def busy_s(self, beat: Beat) -> float:
        """Seconds since ``beat`` without progress; a thread that waits for messages is not busy."""
        return 0.0 if beat.phase == "idle" else self._clock() - beat.at
