"""The first entries of each row in a descending order, where equal ones come in the order of their ids."""

from collections.abc import Callable

import mlx.core as mx

_BLOCK = 32
# Sorted whole at this length. A GPU sorts to partition, so there is nothing to gain by halving first.
_SORTED_AT_ON_CPU = 1024
# A sum this close to what is wanted reaches it: float32 sums of probabilities are not exacter.
_TOLERANCE = 1e-6


def best(values: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """Ids and values [rows, min(count, columns)] of the largest of ``values`` [rows, columns], best first.

    An entry among the ``count`` best is in one of the ``count`` blocks with the largest maxima, so that only those
    are sorted.
    """
    rows, columns = values.shape
    count = min(count, columns)
    ids = None
    if count * _BLOCK < columns:
        missing = -columns % _BLOCK
        if missing:
            values = mx.pad(values, [(0, 0), (0, missing)], constant_values=mx.array(-mx.inf, values.dtype))
        blocks = values.reshape(rows, -1, _BLOCK)
        # in the order of their ids, so that the stable sort below leaves equal values in theirs
        chosen = mx.sort(mx.argsort(-blocks.max(axis=-1), axis=-1)[:, :count], axis=-1)
        values = mx.take_along_axis(blocks, chosen[:, :, None], axis=1).reshape(rows, -1)
        ids = (chosen[:, :, None] * _BLOCK + mx.arange(_BLOCK, dtype=mx.uint32)).reshape(rows, -1)
    order = mx.argsort(-values, axis=-1)[:, :count]
    return order if ids is None else mx.take_along_axis(ids, order, axis=-1), mx.take_along_axis(values, order, axis=-1)


def fewest(keys: mx.array, worth: Callable[[mx.array], mx.array], wanted: mx.array) -> mx.array:
    """Bool [rows, columns]: the fewest entries, largest of the ``keys`` first, that are worth ``wanted`` [rows, 1].

    ``worth`` gives the float32 worth of each key. Keys are integers of at least 0; entries of key 0 are those that
    matter to nobody. There is always one entry, and all of them if they are worth less.
    The row is halved by its median until the half with the last wanted entry is short, which looks at twice the row's
    entries in all, where sorting looks at each 16 times.
    """
    wanted = wanted - _TOLERANCE
    part = _padded(keys)
    above, above_count = mx.zeros(wanted.shape), mx.zeros(wanted.shape, dtype=mx.int32)
    sorted_at = _SORTED_AT_ON_CPU if mx.default_device().type == mx.DeviceType.cpu else part.shape[-1]
    while part.shape[-1] > sorted_at:
        half = part.shape[-1] // 2
        part = mx.partition(part, half, axis=-1)
        lower, upper = part[:, :half], part[:, half:]
        with_upper = above + worth(upper).sum(axis=-1, keepdims=True)
        is_lower = with_upper < wanted
        above = mx.where(is_lower, with_upper, above)
        above_count = above_count + is_lower * half
        part = mx.where(is_lower, lower, upper)
    part = mx.sort(part, axis=-1)[:, ::-1]
    before = above + mx.cumsum(worth(part), axis=-1, inclusive=False)
    count = mx.maximum((before < wanted).sum(axis=-1, keepdims=True), 1)
    last = mx.take_along_axis(part, count - 1, axis=-1)
    larger = keys > last
    equal = keys == last
    room = above_count + count - larger.sum(axis=-1, keepdims=True)
    return larger | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))


def _padded(keys: mx.array) -> mx.array:
    """``keys`` with so many zeros that its length can be halved down to what is sorted whole."""
    halvings = ((keys.shape[-1] - 1) // _SORTED_AT_ON_CPU).bit_length()
    missing = -keys.shape[-1] % (1 << halvings)
    return mx.pad(keys, [(0, 0), (0, missing)]) if missing else keys
