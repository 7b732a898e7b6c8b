"""Faster forward passes of a loaded mlx-lm model on a CPU: the same functions, in ways that suit MLX there.

Each trick stands alone, is here because it won in bench/forward.py, and hands whatever is not its plain case to the
function it stands for. A model that uses none of these functions is left as it is.
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention

from bramley.engine.fast import heap, modules, rotary
from bramley.engine.fast.attention import attention
from bramley.engine.fast.powers import fast_swiglu

TRICKS: Final = ("attention", "swiglu", "rope", "heap")

_NOTES: Final = {
    "attention": "Attention runs in blocks, without copies of shared keys, its softmax in vector instructions.",
    "swiglu": "SwiGLU runs in vector instructions.",
    "rope": "The rotary position of a decoded token is one product.",
    "heap": "Freed buffers stay in the process: up to 512 MiB, each up to 64 MiB.",
}


def apply(model: Any, device: str, tricks: Iterable[str] = TRICKS) -> list[str]:
    """Speed up ``model``, an mlx-lm module, on ``device``, "cpu" or "gpu"; a note for each trick that found a use.

    Applied again, the last call holds. Nothing was measured on a GPU, nor on macOS, whose MLX has vector instructions
    of its own; there nothing is done.
    """
    if device != "cpu" or sys.platform != "linux":
        return []
    undo(model)
    ways: dict[str, Callable[[], bool]] = {
        "attention": lambda: modules.replace(model, scaled_dot_product_attention, attention),
        "swiglu": lambda: modules.replace(model, swiglu, fast_swiglu),
        "rope": lambda: rotary.rotate(model),
        "heap": heap.keep_freed_buffers,
    }
    wanted = set(tricks)
    return [_NOTES[trick] for trick in TRICKS if trick in wanted and ways[trick]()]


def undo(model: Any) -> None:
    """Compute as mlx-lm does again. Freed buffers stay in the process all the same."""
    modules.restore(model)
