"""Attention on a CPU: blocks of queries, heads that share keys as rows of one product, a softmax of vectorised powers.

MLX's own is made of plain operations there: it copies shared keys for every head and computes a prompt's whole square
of scores.
"""

from typing import Any, Final

import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention

from bramley.engine.fast.powers import LOG2_E, LOWEST, VECTOR_FROM, exp2

# Queries in one block: a block sees no key beyond its last query, and its scores should not exceed so many numbers.
_BLOCK: Final = 64
_BLOCK_SCORES: Final = 1 << 21
_MASKED: Final = -1e30


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """As mlx-lm's function of that name: [rows, heads, length, width] from queries, keys and values shaped so.

    Heads that share keys are rows of one product, so no key is copied.
    """
    if sinks is not None or hasattr(cache, "bits") or not _is_plain(queries, keys, values, mask):
        plain: mx.array = scaled_dot_product_attention(
            queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks
        )
        return plain
    rows, heads, length, width = queries.shape
    shared, known = keys.shape[1], keys.shape[2]
    # scores are logarithms to the base of two where powers of two are taken of them
    unit = LOG2_E if rows * heads * length * known >= VECTOR_FROM else 1.0
    queries = (queries * (scale * unit)).reshape(rows, shared, heads // shared, length, width)
    block = min(_BLOCK, max(1, _BLOCK_SCORES // (rows * heads * known)))
    parts = []
    for start in range(0, length, block):
        end = min(start + block, length)
        seen = known - length + end if isinstance(mask, str) else known
        scores = _scores(queries[:, :, :, start:end], keys[:, :, :seen], _bias(mask, start, end, seen, unit))
        part = _weighted(scores, values[:, :, :seen]) if unit == LOG2_E else mx.softmax(scores, axis=-1) @ values
        parts.append(part.reshape(rows, shared, heads // shared, end - start, values.shape[3]))
    out = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=3)
    return out.reshape(rows, heads, length, values.shape[3])


def _scores(queries: mx.array, keys: mx.array, bias: mx.array | None) -> mx.array:
    """[rows, shared, groups * length, seen] of queries [rows, shared, groups, length, width] and the keys they see."""
    rows, shared, groups, length, width = queries.shape
    scores = queries.reshape(rows, shared, groups * length, width) @ keys.swapaxes(-1, -2)
    if bias is None:
        return scores
    return (scores.reshape(rows, shared, groups, length, keys.shape[2]) + bias).reshape(scores.shape)


def _weighted(scores: mx.array, values: mx.array) -> mx.array:
    """The values' mean, weighted with two to the power of the scores."""
    weights = exp2(mx.maximum(scores - scores.max(axis=-1, keepdims=True), LOWEST))
    # a product adds up faster than a reduction, and what is divided here is smaller than the weights
    return (weights @ values) / (weights @ mx.ones((values.shape[2], 1)))


def _is_plain(queries: mx.array, keys: mx.array, values: mx.array, mask: Any) -> bool:
    """Whether these are float32 arrays of four dimensions, and the mask is the same for all heads."""
    for array in (queries, keys, values):
        if not isinstance(array, mx.array) or array.ndim != 4 or array.dtype != mx.float32:
            return False
    if queries.shape[0] != keys.shape[0] or keys.shape[:3] != values.shape[:3]:
        return False
    if queries.shape[1] % keys.shape[1] or queries.shape[2] > keys.shape[2]:
        return False
    if isinstance(mask, mx.array):
        return mask.dtype in (mx.bool_, mx.float32) and (mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] == 1))
    return mask is None or (isinstance(mask, str) and mask == "causal")


def _bias(mask: Any, start: int, end: int, seen: int, unit: float) -> mx.array | None:
    """What queries ``start`` to ``end`` add to their scores [rows, shared, groups, end - start, seen] in this unit.

    "causal" means that the last of them sees ``seen`` keys, and each before it one less.
    """
    if mask is None or (isinstance(mask, str) and end - start == 1):
        return None
    if isinstance(mask, str):
        mask = mx.arange(seen)[None] <= mx.arange(seen - (end - start), seen)[:, None]
    elif mask.shape[-2] > 1:
        mask = mask[..., start:end, :]
    is_boolean = mask.dtype == mx.bool_
    bias: mx.array = mx.where(mask, 0.0, _MASKED) if is_boolean else mx.maximum(mask * unit, _MASKED)
    return bias[:, :, None] if bias.ndim == 4 else bias
