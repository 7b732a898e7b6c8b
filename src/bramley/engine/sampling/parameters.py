"""What a row asks for, and the state it carries from step to step."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

import mlx.core as mx

from bramley.domain.sampling import Sampling

# Below this a temperature is greedy: dividing by it gives nothing but overflow.
_GREEDY_BELOW = 1e-5
# A row with top_k is drawn from its so many best tokens: one of these sizes, which its own top_k alone decides.
_CANDIDATES = (32, 128)


class Filter(Enum):
    """In the order in which they are applied."""

    TOP_K = "top_k"
    MIN_P = "min_p"
    TYPICAL_P = "typical_p"
    TOP_P = "top_p"
    XTC = "xtc"


@dataclass(frozen=True, slots=True)
class Way:
    """How a row's token is found: drawn from its ``candidates`` best, or from all if None, after ``filters``.

    One candidate is the greedy choice.
    """

    candidates: int | None
    filters: tuple[Filter, ...] = ()

    @property
    def is_greedy(self) -> bool:
        return self.candidates == 1


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What a draw depends on beside its logits. ``position`` counts the tokens generated before this one.

    ``end_ids`` end the answer: they are not drawn before ``min_tokens``, and XTC leaves them alone. ``prompt`` and
    ``generated`` are read for penalties only.
    """

    sampling: Sampling
    position: int
    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()
    end_ids: Collection[int] = ()


class RowState:
    """A row while it runs: made from what the host knows, then moved on with tokens that may not be evaluated yet.

    ``seed`` and ``position`` name the noise of the next draw.
    """

    def __init__(self, row: SamplingRow, vocabulary: int) -> None:
        sampling = row.sampling
        self.sampling = sampling
        self.seed = sampling.seed or 0
        self.position = row.position
        self.way = _way(sampling)
        self.end_ids = _within(row.end_ids, vocabulary)
        self._ends = mx.array(self.end_ids, dtype=mx.int32)
        bias = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < vocabulary}
        self._bias = (mx.array(list(bias), dtype=mx.int32), mx.array(list(bias.values()), dtype=mx.float32))
        self._recent: mx.array | None = None
        if sampling.repetition_penalty != 1 and sampling.repetition_context > 0:
            self._recent = mx.array(_tail(row, sampling.repetition_context), dtype=mx.int32)
        self._counts: mx.array | None = None
        if sampling.presence_penalty or sampling.frequency_penalty:
            self._counts = _counts(row.generated, vocabulary)
        self._is_always_adjusted = bool(bias) or self.has_history

    @property
    def has_history(self) -> bool:
        """Whether the tokens drawn so far matter: ``advance`` must be given each."""
        return self._recent is not None or self._counts is not None

    @property
    def is_adjusted(self) -> bool:
        """Whether ``adjust`` has anything to do at this position."""
        return self._is_always_adjusted or self._is_too_short

    @property
    def _is_too_short(self) -> bool:
        return self.position < self.sampling.min_tokens and bool(self.end_ids)

    def adjust(self, logits: mx.array) -> mx.array:
        """Float32 ``logits`` [vocabulary] after penalties, bias and bans.

        Repetition penalty as in CTRL (Keskar et al., 2019), over the last ``repetition_context`` tokens of prompt and
        answer; presence and frequency penalties as OpenAI's reference gives them, over the answer.
        """
        sampling = self.sampling
        if self._recent is not None and self._recent.size:
            seen = logits[self._recent]
            penalty = sampling.repetition_penalty
            logits = _put(logits, self._recent, mx.where(seen > 0, seen / penalty, seen * penalty))
        if self._counts is not None:
            present = (self._counts > 0) * sampling.presence_penalty
            logits = logits - (self._counts * sampling.frequency_penalty + present)
        ids, addends = self._bias
        if ids.size:
            logits = logits.at[ids].add(addends)
        if self._is_too_short:
            logits = _put(logits, self._ends, mx.full(self._ends.shape, -mx.inf))
        return logits

    def advance(self, token: mx.array | None) -> None:
        """Go to the next position. A row with a history takes the ``token`` [1] drawn here, evaluated or not."""
        self.position += 1
        if token is None:
            return
        if self._recent is not None:
            self._recent = mx.concatenate([self._recent, token])[-self.sampling.repetition_context :]
        if self._counts is not None:
            self._counts = self._counts.at[token].add(1.0)


def _way(sampling: Sampling) -> Way:
    if sampling.temperature < _GREEDY_BELOW or sampling.top_k == 1:
        return Way(1)
    asked = {
        Filter.TOP_K: sampling.top_k > 0,
        Filter.MIN_P: sampling.min_p > 0,
        Filter.TYPICAL_P: sampling.typical_p < 1,
        Filter.TOP_P: sampling.top_p < 1,
        Filter.XTC: sampling.xtc_probability > 0,
    }
    candidates = next((size for size in _CANDIDATES if 0 < sampling.top_k <= size), None)
    return Way(candidates, tuple(name for name in Filter if asked[name]))


def _within(ids: Collection[int], vocabulary: int) -> list[int]:
    return sorted(token for token in set(ids) if 0 <= token < vocabulary)


def _tail(row: SamplingRow, count: int) -> list[int]:
    generated = row.generated[-count:]
    missing = count - len(generated)
    return [*(row.prompt[-missing:] if missing > 0 else ()), *generated]


def _counts(tokens: Sequence[int], vocabulary: int) -> mx.array:
    """How often each id occurs, float32 [vocabulary]."""
    counts = mx.zeros((vocabulary,))
    seen = Counter(tokens)
    return counts.at[mx.array(list(seen), dtype=mx.int32)].add(mx.array(list(seen.values()), dtype=mx.float32))


def _put(logits: mx.array, ids: mx.array, values: mx.array) -> mx.array:
    return mx.put_along_axis(logits, ids, values, axis=0)
