"""llama's tensors in a GGUF file, as mlx-lm's ``llama`` names and computes them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import mlx.core as mx

from bramley.domain.errors import ModelLoadError

Form = Literal["float32", "affine4"]

_LAYER: Final = re.compile(r"blk\.(\d+)\.(\w+)")
_IN_LAYER: Final = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_OUTSIDE: Final = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# what MLX loads Q4_0, Q4_1 (4 bits) and Q8_0 (8 bits) as: affine, in groups of 32
_GGUF_GROUP: Final = 32
_BITS: Final = 4


class Quantized:
    """The arrays of one quantized matrix, or of one plain tensor when ``scales`` is None."""

    def __init__(self, name: str, arrays: Mapping[str, mx.array]) -> None:
        self.name = name
        self.weight = arrays["weight"]
        self.scales = arrays.get("scales")
        self.biases = arrays.get("biases")

    @property
    def bits(self) -> int:
        """Bits a weight, from the shapes: a packed row has columns * bits / 32 words."""
        assert self.scales is not None
        return self.weight.shape[-1] * 32 // (self.scales.shape[-1] * _GGUF_GROUP)

    def dense(self) -> mx.array:
        """float32. Scales are widened first: in float16 the product would be rounded once more."""
        if self.scales is None or self.biases is None:
            return self.weight.astype(mx.float32)
        scales, biases = self.scales.astype(mx.float32), self.biases.astype(mx.float32)
        return mx.dequantize(self.weight, scales, biases, group_size=_GGUF_GROUP, bits=self.bits)


def read_tensors(arrays: Mapping[str, mx.array]) -> list[Quantized]:
    """Group ``arrays`` of ``mx.load`` by tensor, renamed. Raises ModelLoadError for a name it does not know."""
    grouped: dict[str, dict[str, mx.array]] = {}
    for full, array in arrays.items():
        stem, _, part = full.rpartition(".")
        grouped.setdefault(stem, {})[part] = array
    return [Quantized(_rename(stem), parts) for stem, parts in sorted(grouped.items(), key=_by_layer)]


def _by_layer(item: tuple[str, Any]) -> tuple[int, str]:
    match = _LAYER.fullmatch(item[0])
    return (int(match[1]) if match else -1, item[0])


def _rename(stem: str) -> str:
    match = _LAYER.fullmatch(stem)
    if match and match[2] in _IN_LAYER:
        return f"model.layers.{match[1]}.{_IN_LAYER[match[2]]}"
    if stem in _OUTSIDE:
        return _OUTSIDE[stem]
    raise ModelLoadError(f"The model file has a tensor {stem}, which llama does not know.")


def to_float32(tensors: Iterable[Quantized]) -> dict[str, mx.array]:
    """Every weight as float32, lazily."""
    return {f"{tensor.name}.weight": tensor.dense() for tensor in tensors}


def to_affine4(tensors: Iterable[Quantized]) -> tuple[dict[str, mx.array], dict[str, Any], list[str]]:
    """Weights for a GPU, the ``quantization`` entry of config.json, and the names that had to be quantized again.

    What MLX has kernels for keeps its packed integers; a matrix in another type, which ``mx.load`` hands over as
    float16, is quantized to 4 bits in groups of 64 where its columns allow, else 32. Scales and vectors are float32,
    and so are activations with them: this model's reach 25,000, too near to where float16 ends (65,504), and
    bfloat16 would round the scales.
    """
    weights: dict[str, mx.array] = {}
    quantization: dict[str, Any] = {"group_size": _GGUF_GROUP, "bits": _BITS, "mode": "affine"}
    requantized = []
    for tensor in tensors:
        if tensor.weight.ndim < 2:
            weights[f"{tensor.name}.weight"] = tensor.weight.astype(mx.float32)
            continue
        if tensor.scales is not None and tensor.biases is not None:
            packed, scales, biases, group, bits = tensor.weight, tensor.scales, tensor.biases, _GGUF_GROUP, tensor.bits
        else:
            group, bits = (64 if tensor.weight.shape[-1] % 64 == 0 else 32), _BITS
            packed, scales, biases = mx.quantize(tensor.weight.astype(mx.float32), group_size=group, bits=bits)
            requantized.append(tensor.name)
        if (group, bits) != (_GGUF_GROUP, _BITS):
            quantization[tensor.name] = {"group_size": group, "bits": bits, "mode": "affine"}
        weights[f"{tensor.name}.weight"] = packed
        weights[f"{tensor.name}.scales"] = scales.astype(mx.float32)
        weights[f"{tensor.name}.biases"] = biases.astype(mx.float32)
    return weights, quantization, requantized
