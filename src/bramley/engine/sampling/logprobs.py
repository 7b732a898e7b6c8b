"""Log-probabilities of the rows that ask for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from bramley.domain.wire import Logprobs
from bramley.engine.sampling.parameters import RowState
from bramley.engine.sampling.ranking import best
from bramley.engine.sampling.weights import log_sum

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Draw:
    token: int
    logprobs: Logprobs | None = None


class LogprobRows:
    """The rows of a batch that ask for log-probabilities, and the arrays of one step.

    They are those of the model itself: natural logarithm, before penalties and temperature.
    """

    def __init__(self, rows: Sequence[RowState]) -> None:
        asked = [(index, row.sampling.logprobs) for index, row in enumerate(rows)]
        self.counts = {index: min(count, MAX_TOP_LOGPROBS) for index, count in asked if count is not None}
        self._indices = mx.array(list(self.counts), dtype=mx.int32)

    def of(self, logits: mx.array, tokens: mx.array) -> tuple[mx.array, ...]:
        """Of ``tokens`` [rows] drawn from ``logits`` [rows, vocabulary]: log-probabilities [asking] of the tokens, then
        ids and log-probabilities [asking, most asked for] of the best. Empty when no row asks.
        """
        if not self.counts:
            return ()
        asking = logits[self._indices].astype(mx.float32)
        total = log_sum(asking)
        chosen = mx.take_along_axis(asking, tokens[self._indices][:, None], axis=-1) - total
        ids, values = best(asking, max(self.counts.values()))
        return chosen[:, 0], ids, values - total

    def read(self, arrays: tuple[mx.array, ...]) -> dict[int, Logprobs]:
        """The evaluated arrays that ``of`` gave, by row."""
        lists: list[Any] = [array.tolist() for array in arrays] or [(), (), ()]
        asking = zip(self.counts.items(), *lists, strict=True)
        return {
            index: Logprobs(logprob, tuple(top_ids[:count]), tuple(top[:count]))
            for (index, count), logprob, top_ids, top in asking
        }
