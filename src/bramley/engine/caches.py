"""mlx-lm's cache classes, as far as the engine handles them: one list of layers for a sequence, or for a batch.

A sequence's own caches ([1, heads, tokens, width] in a layer of keys and values) have no padding. A batch's are padded
on the left to the longest row; rows are in the order they were merged.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, BatchKVCache, CacheList, RotatingKVCache

from bramley.engine.kv import KvCost

# mlx-lm carries no types.
LayerCaches = list[Any]

# Bounds of the room a batch's caches have for tokens to come.
_LEAST_ROOM, _MOST_ROOM = 64, 256


def can_merge(caches: LayerCaches) -> bool:
    """Whether every layer's class can be made a batch of. A window with fixed first tokens cannot."""
    return all(_can_merge(cache) for cache in caches)


def merge(each: Sequence[LayerCaches]) -> LayerCaches:
    """A batch of sequences, which keep their own caches."""
    batch = [layers[0].merge(list(layers)) for layers in zip(*each, strict=True)]
    for cache in batch:
        if type(cache) is BatchKVCache:
            cache.step = _room(cache.size())
    return batch


def merge_empty(each: Sequence[LayerCaches], padding: Sequence[int]) -> LayerCaches:
    """A batch of sequences that have read nothing, for tokens with so much padding on the left.

    ``end_padding`` must follow when those tokens have been read.
    """
    batch = merge(each)
    for cache in batch:
        _pad(cache, list(padding))
    return batch


def end_padding(batch: LayerCaches) -> None:
    """Say that the padded tokens have been read."""
    for cache in batch:
        cache.finalize()


def extend(batch: LayerCaches, others: LayerCaches) -> None:
    """Put the rows of another batch after those of ``batch``. Both are used up but for ``batch``."""
    for cache, other in zip(batch, others, strict=True):
        if type(cache) is BatchKVCache and type(other) is BatchKVCache:
            _cut_spare([cache, other])
        cache.extend(other)


def keep(batch: LayerCaches, indices: Sequence[int]) -> None:
    """Drop all rows of a batch but these."""
    chosen = mx.array(list(indices), dtype=mx.int32)
    for cache in batch:
        cache.filter(chosen)


def extract(batch: LayerCaches, index: int) -> LayerCaches:
    """A sequence's own caches out of a batch, as copies."""
    return [cache.extract(index) for cache in batch]


def arrays(caches: LayerCaches) -> list[mx.array]:
    """Everything the caches hold, to be evaluated."""
    return [array for cache in caches for array in _arrays(cache.state)]


def cost_of(caches: LayerCaches) -> KvCost:
    """What a sequence costs, read off caches that hold at least one token."""
    return sum(map(_cost, caches), KvCost())


def _room(held: int) -> int:
    """For how many tokens more a batch's caches make room at a time: a quarter of those they hold."""
    return min(max(_LEAST_ROOM, held // 4 // _LEAST_ROOM * _LEAST_ROOM), _MOST_ROOM)


def _cut_spare(parts: list[Any]) -> None:
    """Cut the room for tokens to come, which would be copied along.

    mlx-lm's classes make room for 256 tokens at a time: of short rows that is most of what is held and touched.
    """
    held = max(part.size() for part in parts)
    step = _room(held)
    size = (held // step + 1) * step
    for part in parts:
        part.step = step
        if part.keys is not None and part.keys.shape[2] > size:
            part.keys, part.values = part.keys[..., :size, :], part.values[..., :size, :]


def _pad(cache: Any, padding: list[int]) -> None:
    if isinstance(cache, CacheList):
        for part in cache.caches:
            _pad(part, padding)
    elif isinstance(cache, ArraysCache):
        cache.left_padding = mx.array(padding)
    else:
        cache.prepare(left_padding=padding)


def _can_merge(cache: Any) -> bool:
    if isinstance(cache, CacheList):
        return all(map(_can_merge, cache.caches))
    return hasattr(cache, "merge") and not getattr(cache, "keep", 0)


def _cost(cache: Any) -> KvCost:
    """A class unknown here is taken to keep all tokens if it has keys, and to have a state of fixed size if not."""
    if isinstance(cache, CacheList):
        return cost_of(list(cache.caches))
    if isinstance(cache, ArraysCache) or not hasattr(cache, "keys"):
        return KvCost(state=sum(array.nbytes for array in _arrays(cache.state)))
    held = [array for part in (cache.keys, cache.values) for array in _arrays(part)]
    per_token = sum(array.nbytes // array.shape[2] for array in held)
    if isinstance(cache, RotatingKVCache):
        return KvCost(windows=((cache.max_size, per_token),))
    return KvCost(full=per_token)


def _arrays(state: Any) -> Iterable[mx.array]:
    """The arrays in a cache's state, which nests them in tuples and lists and has numbers and None beside them."""
    if isinstance(state, mx.array):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from _arrays(part)
