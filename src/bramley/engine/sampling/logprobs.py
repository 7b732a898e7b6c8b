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
        return score(logits[self._indices], tokens[self._indices], max(self.counts.values()))

    def read(self, arrays: tuple[mx.array, ...]) -> dict[int, Logprobs]:
        """The evaluated arrays that ``of`` gave, by row."""
        return {
            index: Logprobs(row.chosen, row.top_ids[:count], row.top[:count])
            for (index, count), row in zip(self.counts.items(), read_scores(arrays), strict=True)
        }


def score(logits: mx.array, tokens: mx.array, count: int) -> tuple[mx.array, ...]:
    """For each row of ``logits`` [rows, vocabulary]: the log-probability [rows] of its token, of ``tokens`` [rows], and
    ids and log-probabilities [rows, count] of the best. Evaluates nothing.
    """
    rows = logits.astype(mx.float32)
    total = log_sum(rows)
    chosen = mx.take_along_axis(rows, tokens[:, None], axis=-1) - total
    ids, values = best(rows, count)
    return chosen[:, 0], ids, values - total


def read_scores(arrays: tuple[mx.array, ...]) -> list[Logprobs]:
    """What ``score`` gave, a row each; waits for it. Of no arrays there are no rows."""
    lists: list[Any] = [array.tolist() for array in arrays] or [(), (), ()]
    return [Logprobs(chosen, tuple(ids), tuple(top)) for chosen, ids, top in zip(*lists, strict=True)]
