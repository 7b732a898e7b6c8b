"""The next token of each row of logits.

Order: penalties and bias, temperature, min_p, top_k, top_p, then one draw. The draw is Gumbel-max: the token with the
largest ``logit / temperature + g`` where ``g`` is standard Gumbel noise (Maddison et al., "A* Sampling", 2014). The
noise comes from a key made of (seed, position) alone, so that a row gives the same token in any batch and place.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import mlx.core as mx

from bramley.domain.sampling import Sampling
from bramley.domain.wire import Logprobs

MAX_TOP_LOGPROBS = 20
# Below this a temperature is greedy: dividing by it gives nothing but overflow.
_GREEDY_BELOW = 1e-5
# Mass this close to top_p counts as reached: float32 sums of probabilities are not exacter.
_MASS_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """What a draw depends on beside its logits. ``position`` counts the tokens generated before this one.

    ``banned`` token ids are never drawn. ``prompt`` and ``generated`` are read for penalties only.
    """

    sampling: Sampling
    position: int
    prompt: Sequence[int] = ()
    generated: Sequence[int] = ()
    banned: Collection[int] = ()

    @property
    def is_greedy(self) -> bool:
        return self.sampling.temperature < _GREEDY_BELOW

    @property
    def is_filtered(self) -> bool:
        sampling = self.sampling
        return not self.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)


@dataclass(frozen=True, slots=True)
class Draw:
    token: int
    logprobs: Logprobs | None = None


def draw(logits: mx.array, rows: Sequence[SamplingRow]) -> list[Draw]:
    """One token for each row of ``logits`` [rows, vocabulary], any float type. Evaluates once, for all rows.

    Log-probabilities are those of the model itself: natural logarithm, before penalties and temperature.
    """
    logits = logits.astype(mx.float32)
    tokens = _choose(_adjust(logits, rows), rows)
    asked = {index: _top(logits[index], tokens[index], row) for index, row in enumerate(rows) if _wants_logprobs(row)}
    mx.eval(tokens, list(asked.values()))
    ids: list[int] = tokens.tolist()  # type: ignore[assignment] # a vector gives a list
    return [Draw(token, _as_logprobs(*asked[index]) if index in asked else None) for index, token in enumerate(ids)]


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words for (seed, position): one output of SplitMix64 (Steele, Lea, Flood, 2014)."""
    mask = (1 << 64) - 1
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z >> 32, z & 0xFFFFFFFF


def _choose(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Token ids [rows] of float32 logits."""
    if all(row.is_greedy for row in rows):
        return mx.argmax(logits, axis=-1)
    heat = mx.array([1.0 if row.is_greedy else row.sampling.temperature for row in rows])[:, None]
    scaled = (logits - mx.max(logits, axis=-1, keepdims=True)) / heat
    if any(row.is_filtered for row in rows):
        scaled = _filter(scaled, rows)
    keys = mx.array([noise_key(row.sampling.seed or 0, row.position) for row in rows], dtype=mx.uint32)
    vocabulary = logits.shape[-1]
    noise = mx.vmap(lambda key: mx.random.gumbel(shape=(vocabulary,), key=key))(keys)
    greedy = mx.array([row.is_greedy for row in rows])[:, None]
    return mx.argmax(mx.where(greedy, scaled, scaled + noise), axis=-1)


def _filter(scaled: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Minus infinity where top_k, top_p or min_p take a token out; other rows stay as they are.

    Tokens of equal probability are ranked by id: the sort is stable.
    """
    vocabulary = scaled.shape[-1]
    top_k = mx.array([row.sampling.top_k or vocabulary for row in rows])[:, None]
    top_p = mx.array([row.sampling.top_p for row in rows])[:, None]
    min_p = mx.array([row.sampling.min_p for row in rows])[:, None]
    order = mx.argsort(-scaled, axis=-1)
    mass = mx.softmax(mx.take_along_axis(scaled, order, axis=-1), axis=-1)
    rank = mx.arange(vocabulary)[None]
    keep = (rank < top_k) & (mass >= min_p * mass[:, :1])
    mass = mx.where(keep, mass, 0.0)
    before = mx.cumsum(mass / mass.sum(axis=-1, keepdims=True), axis=-1, inclusive=False)
    keep = keep & ((before < top_p - _MASS_TOLERANCE) | (top_p >= 1) | (rank == 0))
    kept = mx.put_along_axis(mx.zeros(scaled.shape, dtype=mx.bool_), order, keep, axis=-1)
    filtered = mx.array([row.is_filtered for row in rows])[:, None]
    return mx.where(kept | ~filtered, scaled, -mx.inf)


def _adjust(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Logits after penalties, bias and bans. Rows that ask for none are not touched."""
    adjusted = [_adjust_row(logits[index], row) for index, row in enumerate(rows)]
    if all(row is None for row in adjusted):
        return logits
    return mx.stack([logits[index] if row is None else row for index, row in enumerate(adjusted)])


def _adjust_row(logits: mx.array, row: SamplingRow) -> mx.array | None:
    """Repetition penalty as in CTRL (Keskar et al., 2019), over the last ``repetition_context`` tokens of prompt and
    answer; presence and frequency penalties as OpenAI's reference gives them, over the answer. None: nothing to do.
    """
    sampling = row.sampling
    adjusted = None
    if sampling.repetition_penalty != 1:
        recent = _tail(row, sampling.repetition_context)
        if recent:
            ids = mx.array(sorted(set(recent)))
            seen = logits[ids]
            penalty = sampling.repetition_penalty
            adjusted = mx.array(logits)
            adjusted[ids] = mx.where(seen > 0, seen / penalty, seen * penalty)
    addends = _addends(row, logits.shape[-1])
    if addends:
        adjusted = logits if adjusted is None else adjusted
        adjusted = adjusted.at[mx.array(list(addends))].add(mx.array(list(addends.values()), dtype=mx.float32))
    return adjusted


def _tail(row: SamplingRow, count: int) -> list[int]:
    generated = row.generated[-count:] if count else ()
    missing = count - len(generated)
    return [*(row.prompt[-missing:] if missing > 0 else ()), *generated]


def _addends(row: SamplingRow, vocabulary: int) -> dict[int, float]:
    """What is added to the logit of which token id."""
    sampling = row.sampling
    addends: dict[int, float] = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for token, count in Counter(row.generated).items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            addends[token] = addends.get(token, 0.0) - penalty
    addends.update(dict.fromkeys(row.banned, -float("inf")))
    return {token: value for token, value in addends.items() if 0 <= token < vocabulary}


def _wants_logprobs(row: SamplingRow) -> bool:
    return row.sampling.logprobs is not None


def _top(logits: mx.array, token: mx.array, row: SamplingRow) -> tuple[mx.array, mx.array, mx.array]:
    """Log-probability of the token, then ids and log-probabilities of the best ones, in no order."""
    logprobs = logits - mx.logsumexp(logits)
    count = min(row.sampling.logprobs or 0, MAX_TOP_LOGPROBS, logits.shape[-1])
    best = mx.argpartition(-logprobs, kth=max(count - 1, 0))[:count]
    return logprobs[token], best, logprobs[best]


def _as_logprobs(chosen: mx.array, ids: mx.array, values: mx.array) -> Logprobs:
    pairs: list[tuple[int, float]] = list(zip(ids.tolist(), values.tolist(), strict=True))  # type: ignore[arg-type] # vectors
    pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    best, logprobs = zip(*pairs, strict=True) if pairs else ((), ())
    return Logprobs(float(chosen), best, logprobs)
