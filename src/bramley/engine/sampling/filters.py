"""The filters: which tokens of a row may be drawn.

Each takes weights [rows, tokens] in any order, where 0 means taken out before, and looks at what is left, renormalised.
Among equal weights the first comes first. The rows of one Filters ask for the same ones.
"""

from collections.abc import Sequence

import mlx.core as mx

from bramley.domain.sampling import Sampling
from bramley.engine.sampling.parameters import Filter, RowState
from bramley.engine.sampling.ranking import fewest

_NOTHING = -1
_INFINITY_BITS = 0x7F800000
_LOW_WORD = 0xFFFFFFFF


class Filters:
    """The ``filters`` that each of ``rows`` asks for, with their parameters as arrays [rows, 1]."""

    def __init__(self, rows: Sequence[RowState], filters: Sequence[Filter]) -> None:
        asked = [row.sampling for row in rows]
        steps = {Filter.TOP_K: _top_k, Filter.MIN_P: _min_p, Filter.TYPICAL_P: _typical_p, Filter.TOP_P: _top_p}
        self._steps = [(steps[name], _column(asked, name.value)) for name in filters if name in steps]
        self._top_choices = _TopChoices(rows) if Filter.XTC in filters else None

    def apply(self, weights: mx.array, ids: mx.array, coin: mx.array) -> mx.array:
        """``weights`` [rows, tokens] of the tokens ``ids`` with 0 where a filter takes a token out.

        ``coin`` [rows], uniform in [0, 1), decides about XTC.
        """
        for keep, parameter in self._steps:
            weights = keep(weights, parameter) * weights
        if self._top_choices is not None:
            weights = self._top_choices.keep(weights, ids, coin[:, None]) * weights
        return weights


class _TopChoices:
    """XTC (p-e-w, 2024): when the coin says so, of the tokens that reach the threshold only the least probable stays.

    Tokens that end the answer stay too: without them it would run on.
    """

    def __init__(self, rows: Sequence[RowState]) -> None:
        asked = [row.sampling for row in rows]
        self._probability = _column(asked, "xtc_probability")
        self._threshold = _column(asked, "xtc_threshold")
        longest = max(len(row.end_ids) for row in rows)
        padded = [[*row.end_ids, *[_NOTHING] * (longest - len(row.end_ids))] for row in rows]
        self._end_ids = mx.array(padded, dtype=mx.int32)

    def keep(self, weights: mx.array, ids: mx.array, coin: mx.array) -> mx.array:
        above = (_normalised(weights) >= self._threshold) & (weights > 0)
        least = mx.where(above, weights, mx.inf).min(axis=-1, keepdims=True)
        place = mx.arange(weights.shape[-1])[None]
        last = mx.where(above & (weights == least), place, _NOTHING).max(axis=-1, keepdims=True)
        is_end = (ids[:, :, None] == self._end_ids[:, None]).any(axis=-1)
        return ~(above & (place != last) & ~is_end & (coin < self._probability))


def _top_k(weights: mx.array, count: mx.array) -> mx.array:
    return fewest(_bits(weights), lambda keys: mx.ones(keys.shape), count)


def _min_p(weights: mx.array, ratio: mx.array) -> mx.array:
    return weights >= ratio * weights.max(axis=-1, keepdims=True)


def _typical_p(weights: mx.array, mass: mx.array) -> mx.array:
    """Locally typical sampling (Meister et al., 2023): the tokens whose information is nearest to the entropy.

    A key is how near in its upper word, the weight in its lower one.
    """
    share = _normalised(weights)
    information = -mx.log(share)
    entropy = mx.where(share > 0, share * information, 0.0).sum(axis=-1, keepdims=True)
    nearness = _INFINITY_BITS - _bits(mx.abs(information - entropy))
    keys = (nearness.astype(mx.int64) << 32) | _bits(share).astype(mx.int64)
    return fewest(keys, lambda keys: (keys & _LOW_WORD).astype(mx.int32).view(mx.float32), mass)


def _top_p(weights: mx.array, mass: mx.array) -> mx.array:
    """Nucleus sampling (Holtzman et al., 2020): the fewest tokens whose mass reaches top_p."""
    return fewest(_bits(_normalised(weights)), lambda keys: mx.maximum(keys, 0).view(mx.float32), mass)


def _column(asked: Sequence[Sampling], name: str) -> mx.array:
    return mx.array([[float(getattr(sampling, name))] for sampling in asked])


def _normalised(weights: mx.array) -> mx.array:
    return weights / weights.sum(axis=-1, keepdims=True)


def _bits(weights: mx.array) -> mx.array:
    """Integers in the order of non-negative float32 ``weights``; MLX sorts them faster."""
    return weights.view(mx.int32)
