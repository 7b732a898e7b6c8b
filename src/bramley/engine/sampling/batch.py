"""Sampling for a batch: prepared once for a composition, then a token for each row at every step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import mlx.core as mx

from bramley.engine.sampling.filters import Filters
from bramley.engine.sampling.logprobs import Draw, LogprobRows
from bramley.engine.sampling.noise import Noise
from bramley.engine.sampling.parameters import RowState, SamplingRow, Way
from bramley.engine.sampling.ranking import best
from bramley.engine.sampling.weights import weights


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens of one step, not evaluated yet: ``tokens`` int32 [rows]."""

    tokens: mx.array
    _logprobs: tuple[mx.array, ...]
    _logprob_rows: LogprobRows

    def arrays(self) -> list[mx.array]:
        """All that ``read`` reads."""
        return [self.tokens, *self._logprobs]

    def read(self) -> list[Draw]:
        """The draws of the rows, in their order; evaluates what is not."""
        logprobs = self._logprob_rows.read(self._logprobs)
        tokens = cast("list[int]", self.tokens.tolist())
        return [Draw(token, logprobs.get(index)) for index, token in enumerate(tokens)]


class SamplingBatch:
    """The rows of a batch, in the order of their logits. Make a new one when rows join, leave or change places.

    The row states go on from one to the next. Rows that go the same way are gathered, so that each pays for what it
    asks for only.
    """

    def __init__(self, rows: Sequence[RowState]) -> None:
        self._rows = tuple(rows)
        self._logprobs = LogprobRows(self._rows)
        self._adjusted: tuple[int, ...] | None = None
        self._groups: tuple[_Group, ...] = ()
        self._places: mx.array | None = None

    def sample(self, logits: mx.array) -> Drawn:
        """One token for each row of ``logits`` [rows, vocabulary], any float type; then every row is a position on.

        Evaluates nothing.
        """
        adjusted = tuple(index for index, row in enumerate(self._rows) if row.is_adjusted)
        if adjusted != self._adjusted:
            self._arrange(adjusted)
        changed = {index: self._rows[index].adjust(logits[index].astype(mx.float32)) for index in adjusted}
        drawn = [group.choose(logits, changed) for group in self._groups]
        tokens = drawn[0] if len(drawn) == 1 else mx.concatenate(drawn)
        if self._places is not None:
            tokens = tokens[self._places]
        logprobs = self._logprobs.of(logits, tokens)
        for index, row in enumerate(self._rows):
            row.advance(tokens[index : index + 1] if row.has_history else None)
        return Drawn(tokens, logprobs, self._logprobs)

    def _arrange(self, adjusted: tuple[int, ...]) -> None:
        """Group the rows by their way; in a group those with adjusted logits come last."""
        self._adjusted = adjusted
        members: dict[Way, list[int]] = {}
        for index in sorted(range(len(self._rows)), key=lambda index: index in adjusted):
            members.setdefault(self._rows[index].way, []).append(index)
        self._groups = tuple(_Group(way, self._rows, indices, adjusted) for way, indices in members.items())
        order = [index for indices in members.values() for index in indices]
        places = sorted(range(len(order)), key=order.__getitem__)
        self._places = None if places == sorted(places) else mx.array(places, dtype=mx.int32)


class _Group:
    """The ``indices`` of a batch's rows whose tokens are found the same way."""

    def __init__(self, way: Way, rows: Sequence[RowState], indices: Sequence[int], adjusted: tuple[int, ...]) -> None:
        self._way = way
        self._rows = [rows[index] for index in indices]
        self._adjusted = [index for index in indices if index in adjusted]
        plain = [index for index in indices if index not in adjusted]
        # None: all rows of the batch as they are
        self._plain = None if len(plain) == len(rows) else mx.array(plain, dtype=mx.int32)
        self._heat = mx.array([[1.0 if way.is_greedy else row.sampling.temperature] for row in self._rows])
        self._filters = Filters(self._rows, way.filters)

    def choose(self, logits: mx.array, changed: dict[int, mx.array]) -> mx.array:
        """Token ids int32 [rows of the group] of the batch's ``logits``, or of the ``changed`` ones [vocabulary]."""
        mine = self._gather(logits, changed)
        if self._way.is_greedy:
            return mx.argmax(mine, axis=-1).astype(mx.int32)
        mine = mine.astype(mx.float32)
        count = self._way.candidates
        ids = mx.arange(mine.shape[-1])[None]
        if count is not None:
            ids, mine = best(mine, count)
        noise = Noise([(row.seed, row.position) for row in self._rows], count or mine.shape[-1])
        left = self._filters.apply(weights(mine, self._heat), ids, noise.coin)
        drawn = noise.pick(left)
        return (drawn if count is None else mx.take_along_axis(ids, drawn[:, None], axis=-1)[:, 0]).astype(mx.int32)

    def _gather(self, logits: mx.array, changed: dict[int, mx.array]) -> mx.array:
        if self._plain is None:
            return logits
        if not self._adjusted:
            return logits[self._plain]
        mine = mx.stack([changed[index] for index in self._adjusted])
        return mx.concatenate([logits[self._plain].astype(mx.float32), mine]) if self._plain.size else mine


def sample(logits: mx.array, rows: Sequence[SamplingRow]) -> Drawn:
    """One token for each row of ``logits`` [rows, vocabulary], any float type, for rows the host knows all about.

    Evaluates nothing.
    """
    return SamplingBatch([RowState(row, logits.shape[-1]) for row in rows]).sample(logits)


def draw(logits: mx.array, rows: Sequence[SamplingRow]) -> list[Draw]:
    """``sample``, evaluated at once."""
    drawn = sample(logits, rows)
    mx.eval(drawn.arrays())
    return drawn.read()
