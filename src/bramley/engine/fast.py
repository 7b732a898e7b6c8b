"""Faster forward passes of a loaded mlx-lm model on a CPU: the same functions, in ways that suit MLX there.

MLX's exp on x86 is scalar and takes some 20 ns a number, more than the products around it, so softmax and SiLU are most of a
prompt's time. Here exp is a polynomial in operations that g++ turns into vector instructions when MLX compiles them.

Each trick stands alone, is there because it won in bench/forward.py, and hands whatever is not its plain case to the function
it stands for. The model's modules get subclasses of their classes, whose methods see the faster functions in place of mlx-lm's.
Nothing of mlx-lm itself is changed, a model that uses none of these functions is left as it is, and ``undo`` gives the classes
back.
"""

import ctypes
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FunctionType
from typing import Any, Final

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.rope_utils import Llama3RoPE

Function = Callable[..., Any]

ATTENTION: Final = "attention"
SWIGLU: Final = "swiglu"
ROPE: Final = "rope"
HEAP: Final = "heap"
TRICKS: Final = (ATTENTION, SWIGLU, ROPE, HEAP)

_NOTES: Final = {
    ATTENTION: "Attention runs in blocks, without copies of shared keys, its softmax in vector instructions.",
    SWIGLU: "SwiGLU runs in vector instructions.",
    ROPE: "Rotary positions of a decoded token are one product.",
    HEAP: "Freed buffers stay in the process, up to 256 MiB of them, and each up to 64 MiB.",
}

# Below so many numbers the operations of exp2 cost more to start than the one slow exp.
_VECTOR_FROM: Final = 4096
# Queries in one block: a block sees no key beyond its last query, and its scores should not exceed so many numbers.
_BLOCK: Final = 64
_BLOCK_SCORES: Final = 1 << 21
_MASKED: Final = -1e30
_LOG2_E: Final = 1.4426950408889634
# 2**-115 is nothing beside the largest weight, 1, and its products with values are no denormal numbers.
_LOWEST: Final = -115.0
# Added to a number up to 2**22, it leaves a whole number in the low bits, to which 127, the exponent's bias, is added.
# std::floor and std::fma would be calls, which are not vectorised.
_ROUNDER: Final = 12582912.0 + 127.0
_MANTISSA_BITS: Final = 23
# 2**x = 1 + x * c1 + ... + x**5 * c5 for x in -0.5..0.5: least squares on Chebyshev points, reweighted until the relative
# error was the same everywhere, 1e-7.
_C1, _C2, _C3, _C4, _C5 = (
    0.6931469775972956,
    0.2402224208412134,
    0.05550733745936376,
    0.009671512697168073,
    0.0013264726389910324,
)
_ORIGINAL: Final = "bramley_original"
# Parameters of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 256 << 20
_KEPT_BUFFER_BYTES: Final = 64 << 20


def apply(model: nn.Module, device: str, tricks: Iterable[str] = TRICKS) -> list[str]:
    """Speed up ``model``, loaded, on ``device``, "cpu" or "gpu"; a note for each trick that found a use.

    Nothing was measured on a GPU or on macOS, where MLX computes with other kernels, so nothing is done there.
    """
    if device != "cpu" or sys.platform != "linux":
        return []
    wanted = set(tricks)
    undo(model)
    functions: dict[Function, Function] = {}
    if ATTENTION in wanted:
        functions[scaled_dot_product_attention] = attention
    if SWIGLU in wanted:
        functions[swiglu] = fast_swiglu
    used = _rebind(model, functions)
    if ROPE in wanted and _rotate(model):
        used.add(ROPE)
    if HEAP in wanted and _keep_freed_buffers():
        used.add(HEAP)
    return [_NOTES[trick] for trick in TRICKS if trick in used]


def undo(model: nn.Module) -> None:
    """Give every module the class it was loaded with. The heap stays as it is."""
    for module in model.modules():
        original = getattr(type(module), _ORIGINAL, None)
        if original is not None:
            module.__class__ = original


def _keep_freed_buffers() -> bool:
    """Have glibc keep freed memory; False where there is another C library.

    A buffer of a few MiB that comes from the system anew has to be cleared page by page, which takes longer than an
    elementwise operation on it. glibc learns to keep some, but hands free memory at the end of the heap back each time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    kept = mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES), mallopt(_M_MMAP_THRESHOLD, _KEPT_BUFFER_BYTES)
    return all(kept)


# ---- powers of two. A compiled function is split where it is deeper than MLX allows; these are as deep as it does. ----


@partial(mx.compile, shapeless=True)
def _split(x: mx.array) -> tuple[mx.array, mx.array]:
    rounded = x + _ROUNDER
    return rounded, x - (rounded - _ROUNDER)


@partial(mx.compile, shapeless=True)
def _high_terms(x: mx.array) -> mx.array:
    return (_C2 + _C3 * x) + mx.square(x) * (_C4 + _C5 * x)


@partial(mx.compile, shapeless=True)
def _combined(x: mx.array, high: mx.array, power: mx.array) -> mx.array:
    return power * ((1.0 + _C1 * x) + mx.square(x) * high)


@partial(mx.compile, shapeless=True)
def _exponent(gate: mx.array) -> mx.array:
    return mx.clip(gate * -_LOG2_E, _LOWEST, -_LOWEST)


@partial(mx.compile, shapeless=True)
def _gated(gate: mx.array, x: mx.array, power: mx.array) -> mx.array:
    return gate * x / (1.0 + power)


def exp2(x: mx.array) -> mx.array:
    """2**x of float32 numbers from -115 to 115, to 3e-7 of the result."""
    rounded, rest = _split(x)
    power = mx.left_shift(rounded.view(mx.int32), _MANTISSA_BITS).view(mx.float32)
    return _combined(rest, _high_terms(rest), power)


def fast_swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """silu(gate) * x, as mlx-lm's ``swiglu``; float32 of any shape."""
    if gate.dtype != mx.float32 or x.dtype != mx.float32 or gate.shape != x.shape or gate.size < _VECTOR_FROM:
        return swiglu(gate, x)
    return _gated(gate, x, exp2(_exponent(gate)))


# ---- attention -------------------------------------------------------------------------------------------------------


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
        return scaled_dot_product_attention(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)
    rows, heads, length, width = queries.shape
    shared, known = keys.shape[1], keys.shape[2]
    queries = (queries * (scale * _LOG2_E)).reshape(rows, shared, heads // shared, length, width)
    block = min(_BLOCK, max(1, _BLOCK_SCORES // (rows * heads * known)))
    parts = []
    for start in range(0, length, block):
        end = min(start + block, length)
        seen = known - length + end if isinstance(mask, str) else known
        bias = _bias(mask, start, end, seen)
        parts.append(_block(queries[:, :, :, start:end], keys[:, :, :seen], values[:, :, :seen], bias))
    out = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=3)
    return out.reshape(rows, heads, length, values.shape[-1])


def _block(queries: mx.array, keys: mx.array, values: mx.array, bias: mx.array | None) -> mx.array:
    """[rows, shared, groups, length, width] of queries shaped so, whose scores are logarithms to the base of two."""
    rows, shared, groups, length, width = queries.shape
    seen = keys.shape[2]
    scores = queries.reshape(rows, shared, groups * length, width) @ keys.swapaxes(-1, -2)
    if bias is not None:
        scores = (scores.reshape(rows, shared, groups, length, seen) + bias).reshape(scores.shape)
    scores = scores - scores.max(axis=-1, keepdims=True)
    weights = mx.exp(scores * (1 / _LOG2_E)) if scores.size < _VECTOR_FROM else exp2(mx.maximum(scores, _LOWEST))
    # a product adds up faster than a reduction, and what it divides is smaller than the weights
    out = (weights @ values) / (weights @ mx.ones((seen, 1)))
    return out.reshape(rows, shared, groups, length, values.shape[-1])


def _is_plain(queries: mx.array, keys: mx.array, values: mx.array, mask: Any) -> bool:
    """Whether these are float32 arrays of four dimensions, and the mask is the same for all heads."""
    for array in (queries, keys, values):
        if not isinstance(array, mx.array) or array.ndim != 4 or array.dtype != mx.float32:
            return False
    if queries.shape[1] % keys.shape[1] or queries.shape[2] > keys.shape[2]:
        return False
    if isinstance(mask, mx.array):
        return mask.dtype in (mx.bool_, mx.float32) and (mask.ndim == 2 or (mask.ndim == 4 and mask.shape[1] == 1))
    return mask is None or (isinstance(mask, str) and mask == "causal")


def _bias(mask: Any, start: int, end: int, seen: int) -> mx.array | None:
    """What queries ``start`` to ``end`` add to their scores [rows, shared, groups, end - start, seen].

    "causal" means that the last of them sees ``seen`` keys, and each before it one less.
    """
    if mask is None or (isinstance(mask, str) and end - start == 1):
        return None
    if isinstance(mask, str):
        mask = mx.arange(seen)[None] <= mx.arange(seen - (end - start), seen)[:, None]
    elif mask.shape[-2] > 1:
        mask = mask[..., start:end, :]
    if mask.dtype == mx.bool_:
        mask = mx.where(mask, 0.0, _MASKED)
    else:
        mask = mx.maximum(mask * _LOG2_E, _MASKED)
    return mask[:, :, None] if mask.ndim == 4 else mask


# ---- rotary positions ------------------------------------------------------------------------------------------------


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


def _rotate(model: nn.Module) -> bool:
    """Let rotary embeddings of the two usual kinds rotate single tokens by a product."""
    shared: dict[tuple[Any, ...], _Rotation] = {}
    for module in model.modules():
        kind = type(module)
        if kind is nn.RoPE:
            alike = (kind, module.dims, module.traditional, module.base, module.scale)
        elif kind is Llama3RoPE:
            alike = (kind, module.dims, module.traditional, *module._freqs.tolist())
        else:
            continue
        module.__class__ = _rotary_class(kind)
        module.rotation = shared.setdefault(alike, _Rotation())
    return bool(shared)


def _rotary_class(kind: type[nn.Module]) -> type[nn.Module]:
    original: Function = kind.__call__

    def rotated(self: Any, x: mx.array, offset: Any = 0) -> mx.array:
        if x.ndim != 4 or x.shape[2] != 1 or not isinstance(offset, int) or x.dtype != mx.float32:
            return original(self, x, offset=offset)
        return x @ self.rotation.matrix(partial(original, self), offset, x.shape[-1])

    return type(kind.__name__, (kind,), {"__call__": rotated, "__module__": kind.__module__, _ORIGINAL: kind})


# ---- modules ---------------------------------------------------------------------------------------------------------


def _rebind(model: nn.Module, functions: dict[Function, Function]) -> set[str]:
    """Give modules whose methods call one of ``functions`` a subclass in which they call its replacement."""
    made: dict[type, type | None] = {}
    used: set[str] = set()
    for module in model.modules():
        kind = type(module)
        if kind not in made:
            made[kind] = _subclass(kind, functions, used)
        fast = made[kind]
        if fast is not None:
            module.__class__ = fast
    return used


def _subclass(kind: type, functions: dict[Function, Function], used: set[str]) -> type | None:
    methods: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        for name, method in vars(base).items():
            methods.pop(name, None)
            if isinstance(method, FunctionType):
                names = {
                    word: functions[method.__globals__[word]]
                    for word in method.__code__.co_names
                    if _is_one_of(method.__globals__.get(word), functions)
                }
                if names:
                    methods[name] = _with_globals(method, names)
                    used |= {_TRICK_OF[function] for function in names.values()}
    if not methods:
        return None
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__, _ORIGINAL: kind})


def _is_one_of(value: Any, functions: dict[Function, Function]) -> bool:
    return callable(value) and any(value is function for function in functions)


def _with_globals(method: FunctionType, names: dict[str, Function]) -> FunctionType:
    copy = FunctionType(
        method.__code__, {**method.__globals__, **names}, method.__name__, method.__defaults__, method.__closure__
    )
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy


_TRICK_OF: Final[dict[Function, str]] = {attention: "attention", fast_swiglu: "swiglu"}
