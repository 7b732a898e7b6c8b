"""Rotary embeddings of a decoded token as one product, where MLX's own is some twenty operations for each layer."""

from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.positional_encoding import RoPE
from mlx_lm.models.rope_utils import Llama3RoPE

from bramley.engine.fast.modules import Function, subclass


class _Rotation:
    """What a rotary embedding does to a token at one position, kept until another position is asked for.

    Shared by the layers that rotate alike, which ask for the same position one after the other.
    """

    def __init__(self) -> None:
        self._position: tuple[int, int] | None = None
        self._matrix = mx.zeros(())

    def matrix(self, rope: Function, offset: int, width: int) -> mx.array:
        """[width, width]: a row x [width] becomes x @ matrix. A rotation is linear, so the unit vectors tell it."""
        if self._position != (offset, width):
            units = mx.eye(width).reshape(1, width, 1, width)
            self._matrix = rope(units, offset=offset).reshape(width, width)
            self._position = (offset, width)
        return self._matrix


def rotate(model: Any) -> bool:
    """Let rotary embeddings of the two usual kinds rotate single tokens by a product; False when there are none."""
    made = {kind: _rotating(kind) for kind in (RoPE, Llama3RoPE)}
    shared: dict[tuple[Any, ...], _Rotation] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in made:
            continue
        frequencies = (module.base, module.scale) if kind is RoPE else tuple(module._freqs.tolist())
        alike = (kind, module.dims, module.traditional, frequencies)
        module.__class__ = made[kind]
        module.rotation = shared.setdefault(alike, _Rotation())
    return bool(shared)


def _rotating(kind: Any) -> type:
    original: Function = kind.__call__

    def rotated(self: Any, x: mx.array, offset: Any = 0) -> Any:
        """Rotate x [rows, heads, length, width], whose first position is ``offset``."""
        if x.ndim != 4 or x.shape[2] != 1 or x.dtype != mx.float32 or not isinstance(offset, int):
            return original(self, x, offset=offset)
        return x @ self.rotation.matrix(partial(original, self), offset, x.shape[3])

    return subclass(kind, {"__call__": rotated})
