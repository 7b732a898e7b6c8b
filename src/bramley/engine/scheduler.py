"""Who computes in the next step. Pure Python: no MLX, no clock, no messages."""

from dataclasses import dataclass
from typing import Final

from bramley.domain.errors import Overloaded
from bramley.domain.requests import Priority
from bramley.engine.kv import KvCost
from bramley.engine.pace import Pace
from bramley.engine.sequence import Sequence

_CLASSES: Final[tuple[Priority, ...]] = ("high", "normal", "batch")
# After so long a wait a request counts as one of the next higher class.
_PROMOTION_S = 10.0
# With every wait as long as this, a prompt counts as half as long when the shortest is looked for.
_HALVING_S = 5.0
# A rest of the budget smaller than this is not worth a forward pass, unless it ends a prompt.
_LEAST_SHARE = 32
# The budget is stretched so far for a prompt that ends with it: another pass for the rest would cost more.
_STRETCH = 1.25
_MAX_PREEMPTIONS = 2


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: ``preempt`` stop running, ``admit`` begin to; ``prefill`` (sequence, tokens) read on; ``decode`` get
    one more token each.

    A sequence whose prompt ends with its share of ``prefill`` gets its first token in the same step.
    """

    preempt: tuple[Sequence, ...] = ()
    admit: tuple[Sequence, ...] = ()
    prefill: tuple[tuple[Sequence, int], ...] = ()
    decode: tuple[Sequence, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """``max_num_seqs`` run, ``max_queue`` wait, ``kv_bytes`` of caches are held by those that run."""

    max_num_seqs: int
    max_queue: int
    kv_bytes: int


class Scheduler:
    """Classes high, normal, batch: a higher one goes first, and within a class the first to come. Waiting promotes.

    A sequence runs when there is a place and memory for its prompt and the answer counted on; the next in line is not
    overtaken. One of a higher class takes the place of one of a lower class, promotions by waiting counted. When
    answers grow beyond what was counted on, and memory with them, the newest of the lowest class goes back to the
    queue; its prompt and answer so far are read again later. That happens to a sequence twice at most, and the last one
    running is let be.

    A step is one decode of all running sequences and at most ``pace.chunk`` prompt tokens in total. They are for the
    prompt with the least left, in the highest class; waiting makes a prompt count as shorter, so that all get on.
    """

    def __init__(self, limits: Limits, cost: KvCost, pace: Pace) -> None:
        self._limits = limits
        self._cost = cost
        self._pace = pace
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def kv_reserved(self) -> int:
        """Bytes set aside for the running sequences' caches."""
        return sum(self._bytes(sequence) for sequence in self._running)

    @property
    def is_prefilling(self) -> bool:
        """Whether the next step reads a prompt."""
        return bool(self._waiting and self._free_slots) or any(not s.is_prefilled for s in self._running)

    @property
    def has_next(self) -> bool:
        """Whether a step has something to compute before the tokens in flight are known."""
        return self.is_prefilling or any(not sequence.is_drawn for sequence in self._running)

    def misfit(self, sequence: Sequence) -> str | None:
        """Why a sequence can never run, as a sentence for the user; None if it can."""
        needed, allowed = self._cost.of(sequence.projected), self._limits.kv_bytes
        if needed <= allowed:
            return None
        return (
            f"The request needs {_mebibytes(needed)} of memory for {sequence.projected} tokens; "
            f"the server has {_mebibytes(allowed)} for all requests together."
        )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises Overloaded when the queue is full; one that can run at once needs no place in it."""
        if len(self._waiting) >= self._limits.max_queue + self._free_slots:
            limit = self._limits.max_queue
            raise Overloaded(f"The server has {limit} requests waiting already; try again in a moment.")
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence, wherever it is."""
        (self._running if sequence.is_running else self._waiting).remove(sequence)

    def plan(self, now: float) -> StepPlan:
        """Say who runs and who computes. The caller carries the plan out before it asks again."""
        preempted = self._relieve()
        admitted = self._admit(now, preempted)
        decode = tuple(one for one in self._running if one.is_prefilled and not one.is_drawn)
        reading = sum(not one.is_prefilled for one in self._running)
        chunk = self._pace.chunk(decoding=len(decode), reading=reading)
        return StepPlan(tuple(preempted), tuple(admitted), tuple(self._shares(chunk, now)), decode)

    @property
    def _free_slots(self) -> int:
        return self._limits.max_num_seqs - len(self._running)

    def _bytes(self, sequence: Sequence) -> int:
        return self._cost.of(max(sequence.reserved, sequence.length))

    def _relieve(self) -> list[Sequence]:
        """Preempt until the answers that grew fit into memory, or nobody is left who may be preempted."""
        preempted: list[Sequence] = []
        while len(self._running) > 1 and self.kv_reserved > self._limits.kv_bytes:
            victim = _victim(self._running)
            if victim is None:
                break
            self._preempt(victim, preempted)
        return preempted

    def _admit(self, now: float, preempted: list[Sequence]) -> list[Sequence]:
        """Move the next in line to the running as long as there is room; adds to ``preempted`` who makes room."""
        admitted: list[Sequence] = []
        while candidates := self._candidates(preempted):
            sequence = min(candidates, key=lambda one: (_rank(one, now), one.submitted_at, one.number))
            if not self._make_room(sequence, preempted):
                break
            self._waiting.remove(sequence)
            sequence.admit(now, _rank(sequence, now))
            self._running.append(sequence)
            admitted.append(sequence)
        return admitted

    def _candidates(self, preempted: list[Sequence]) -> list[Sequence]:
        """Who may be the next to run: with no place free only those who could take somebody's."""
        lowest = len(_CLASSES)
        if self._free_slots <= 0:
            lowest = max((one.standing for one in self._running), default=0)
        return [one for one in self._waiting if _class(one) < lowest and one not in preempted]

    def _make_room(self, sequence: Sequence, preempted: list[Sequence]) -> bool:
        """Whether a sequence can run now. Those of a lower class make room, if enough of them can."""
        staying = list(self._running)
        victims: list[Sequence] = []
        while not self._fits(sequence, staying):
            victim = _victim([one for one in staying if one.standing > _class(sequence)])
            if victim is None:
                return False
            staying.remove(victim)
            victims.append(victim)
        for victim in victims:
            self._preempt(victim, preempted)
        return True

    def _fits(self, sequence: Sequence, others: list[Sequence]) -> bool:
        if len(others) >= self._limits.max_num_seqs:
            return False
        held = sum(map(self._bytes, others))
        return not others or self._cost.of(sequence.projected) + held <= self._limits.kv_bytes

    def _preempt(self, sequence: Sequence, preempted: list[Sequence]) -> None:
        self._running.remove(sequence)
        self._waiting.append(sequence)
        sequence.preempt()
        preempted.append(sequence)

    def _shares(self, budget: int, now: float) -> list[tuple[Sequence, int]]:
        reading = [one for one in self._running if not one.is_prefilled]
        reading.sort(key=lambda one: (_rank(one, now), _weight(one, now)))
        shares: list[tuple[Sequence, int]] = []
        for sequence in reading:
            ends = sequence.prompt_left <= budget * _STRETCH
            share = sequence.prompt_left if ends else budget
            if share < min(_LEAST_SHARE, sequence.prompt_left) and shares:
                break
            shares.append((sequence, share))
            budget -= share
            if budget <= 0:
                break
        return shares


def _class(sequence: Sequence) -> int:
    """0 is the highest."""
    return _CLASSES.index(sequence.priority)


def _rank(sequence: Sequence, now: float) -> int:
    """Its class, one higher for every ``_PROMOTION_S`` it has been here."""
    return max(0, _class(sequence) - int((now - sequence.submitted_at) / _PROMOTION_S))


def _weight(sequence: Sequence, now: float) -> float:
    """What is left of its prompt, counted as less the longer it has been here."""
    return sequence.prompt_left * float(0.5 ** ((now - sequence.submitted_at) / _HALVING_S))


def _victim(running: list[Sequence]) -> Sequence | None:
    """The newest of the lowest class among those that may be preempted."""
    able = [one for one in running if one.preemptions < _MAX_PREEMPTIONS]
    return max(able, key=lambda one: (_class(one), one.submitted_at, one.number), default=None)


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
