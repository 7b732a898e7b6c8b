"""Who computes in the next step. Pure Python: no MLX, no clock, no messages."""

from collections import deque
from dataclasses import dataclass

from bramley.domain.errors import Overloaded
from bramley.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: ``admit`` begin to run, ``prefill`` (sequence, tokens) read on, ``decode`` get one more token each.

    A sequence whose prompt ends with its share of ``prefill`` gets its first token in the same step.
    """

    admit: tuple[Sequence, ...] = ()
    prefill: tuple[tuple[Sequence, int], ...] = ()
    decode: tuple[Sequence, ...] = ()


class Scheduler:
    """First come, first served. At most ``max_num_seqs`` run; others wait in a queue of ``max_queue``.

    A step is one decode of all running sequences and at most ``chunk`` prompt tokens in total, so that a long prompt
    holds no one up for longer than that.
    """

    def __init__(self, *, max_num_seqs: int, max_queue: int, chunk: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_queue = max_queue
        self._chunk = chunk
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    @property
    def is_prefilling(self) -> bool:
        """Whether the next step reads a prompt."""
        return bool(self._waiting and self._free_slots) or any(not s.is_prefilled for s in self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises Overloaded when the queue is full; one that can run at once needs no place in it."""
        if len(self._waiting) >= self._max_queue + self._free_slots:
            raise Overloaded(f"The server has {self._max_queue} requests waiting already; try again in a moment.")
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it is."""
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)

    def plan(self) -> StepPlan:
        """Admit what fits and say who computes. The caller carries the plan out before it asks again."""
        admit = [self._waiting.popleft() for _ in range(min(self._free_slots, len(self._waiting)))]
        self._running.extend(admit)
        decode = tuple(sequence for sequence in self._running if sequence.is_prefilled)
        return StepPlan(tuple(admit), tuple(self._shares()), decode)

    @property
    def _free_slots(self) -> int:
        return self._max_num_seqs - len(self._running)

    def _shares(self) -> list[tuple[Sequence, int]]:
        shares = []
        budget = self._chunk
        for sequence in self._running:
            share = min(sequence.prompt_left, budget)
            if share > 0:
                shares.append((sequence, share))
                budget -= share
        return shares
