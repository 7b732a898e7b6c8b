"""Gumbel noise that depends on (seed, position) alone, and the draw from weights.

A draw is the index with the largest ``log(weight) + g``, ``g`` standard Gumbel noise (Maddison et al., "A* Sampling",
2014). As the largest of a block of such sums is itself Gumbel noise around the log of the block's weight, a block is
drawn first and then one of its members: noise for a few hundred numbers in place of the whole vocabulary.
"""

from collections.abc import Iterable

import mlx.core as mx

_BLOCK = 64


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words for (seed, position): one output of SplitMix64 (Steele, Lea, Flood, 2014)."""
    mask = (1 << 64) - 1
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    z ^= z >> 31
    return z >> 32, z & 0xFFFFFFFF


class Noise:
    """Gumbel noise for drawing from ``width`` weights, one row for each (seed, position).

    ``coin`` [rows] is uniform in [0, 1) and independent of the draw.
    """

    def __init__(self, places: Iterable[tuple[int, int]], width: int) -> None:
        self._blocks = -(-width // _BLOCK)
        count = self._blocks + _BLOCK + 1
        keys = mx.array([noise_key(seed, position) for seed, position in places], dtype=mx.uint32)
        self._gumbel = mx.vmap(lambda key: mx.random.gumbel(shape=(count,), key=key))(keys)

    @property
    def coin(self) -> mx.array:
        return mx.exp(-mx.exp(-self._gumbel[:, -1]))

    def pick(self, weights: mx.array) -> mx.array:
        """Indices [rows] drawn from ``weights`` [rows, width], which need not sum to 1; never one of weight 0."""
        rows, width = weights.shape
        missing = self._blocks * _BLOCK - width
        if missing:
            weights = mx.pad(weights, [(0, 0), (0, missing)])
        blocks = weights.reshape(rows, self._blocks, _BLOCK)
        block = mx.argmax(mx.log(blocks.sum(axis=-1)) + self._gumbel[:, : self._blocks], axis=-1)
        inside = mx.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
        member = mx.argmax(mx.log(inside) + self._gumbel[:, self._blocks : -1], axis=-1)
        # weights that are not numbers must not lead out of the vocabulary
        return mx.minimum(block * _BLOCK + member, width - 1)
