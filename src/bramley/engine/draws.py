"""What a step computes, and the draws of its tokens: made without waiting for the device, read a step later."""

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import mlx.core as mx

from bramley.engine.group import Newest
from bramley.engine.pace import Pace
from bramley.engine.sampling import Draw, Drawn, RowState, SamplingBatch, SamplingRow
from bramley.engine.sequence import Sequence


@dataclass(slots=True)
class Pass:
    """The forward passes of a step: who gets a token from them, and how long they take.

    ``decoded`` are the logits of the running rows, None if there are none; ``prompts`` the caches of prompts read in
    part, ``read`` the number of prompt tokens. ``parts`` are the logits [rows, vocabulary] of ``sequences``, in order.
    """

    clock: Callable[[], float] = time.monotonic
    sequences: list[Sequence] = field(default_factory=list)
    parts: list[mx.array] = field(default_factory=list)
    decoded: mx.array | None = None
    prompts: list[mx.array] = field(default_factory=list)
    read: int = 0
    _began: float | None = None
    _decoded_at: float | None = None

    def start(self, *more: mx.array) -> None:
        """Start what is there of it and return before it is computed, on devices that can."""
        if self._began is None:
            self._began = self.clock()
        _start([*([] if self.decoded is None else [self.decoded]), *self.parts, *self.prompts, *more])

    def start_timed(self, *more: mx.array) -> None:
        """The same for a device whose start takes as long as the computation, timing its two kinds of work apart."""
        self._began = self.clock()
        if self.read and self.decoded is not None:
            self._wait_for_decode()
        self.start(*more)

    def finish(self, wanted: list[mx.array], since: float, pace: Pace) -> float:
        """Wait for arrays that depend on the passes, tell the pace, give the time. The device was free ``since``."""
        if self._began is None:
            # Only then: a cache array is changed in place, and may stand for the next step's tokens too by now.
            wanted = [*wanted, *self.prompts]
        began = since if self._began is None else max(self._began, since)
        if self.read and self.decoded is not None and self._decoded_at is None:
            self._wait_for_decode()
        mx.eval(wanted)
        now = self.clock()
        decoded_at = began if self._decoded_at is None else max(self._decoded_at, began)
        if self.decoded is not None:
            pace.decoded((decoded_at if self.read else now) - began)
        pace.read(self.read, now - decoded_at)
        return now

    def _wait_for_decode(self) -> None:
        mx.eval(self.decoded)
        self._decoded_at = self.clock()


@dataclass(frozen=True, slots=True)
class Flight:
    """Tokens being drawn, of ``sequences`` in order, and the pass they come from."""

    sequences: tuple[Sequence, ...]
    drawn: Drawn
    source: Pass

    @property
    def newest(self) -> Newest:
        return Newest(self.drawn.tokens, self.sequences)

    def draws(self) -> list[tuple[Sequence, Draw]]:
        """The tokens; waits for those that are not there."""
        return list(zip(self.sequences, self.drawn.read(), strict=True))


class Sampler:
    """Keeps each sequence's sampling state, and the arrays made from them as long as the same rows come in order."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._states: dict[Sequence, RowState] = {}
        self._rows: tuple[Sequence, ...] = ()
        self._batch: SamplingBatch | None = None

    def __len__(self) -> int:
        return len(self._states)

    def forget(self, sequence: Sequence) -> None:
        """Drop a sequence's state; the next draw makes it anew from what the host knows."""
        if self._states.pop(sequence, None) is not None:
            self._rows, self._batch = (), None

    def draw(self, sequences: Rows[Sequence], logits: mx.array) -> Drawn:
        """Draw one token for each row of ``logits`` [sequences, vocabulary]. Evaluates nothing.

        All tokens drawn before must be known to the sequences.
        """
        rows = tuple(sequences)
        if self._batch is None or rows != self._rows:
            self._rows = rows
            self._batch = SamplingBatch([self._state(sequence) for sequence in rows])
        return self._batch.sample(logits)

    def _state(self, sequence: Sequence) -> RowState:
        if sequence not in self._states:
            row = SamplingRow(
                sampling=sequence.sampling,
                position=len(sequence.generated),
                prompt=sequence.prompt,
                generated=tuple(sequence.generated),
                end_ids=sequence.end_ids,
            )
            self._states[sequence] = RowState(row, self._vocab_size)
        return self._states[sequence]


def _start(wanted: list[mx.array]) -> None:
    mx.async_eval(wanted)  # type: ignore[no-untyped-call] # MLX's stub leaves its arguments out
