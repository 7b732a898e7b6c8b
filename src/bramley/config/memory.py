"""How much memory a model will take, from its files alone: nothing is loaded, MLX is not needed."""

import importlib.metadata
import os
import platform
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from bramley.config.checkpoint import Tensor, read_config, read_tensors
from bramley.config.settings import Settings

Device = Literal["cpu", "gpu"]

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_ASKED = {"float32": 4, "float16": 2, "bfloat16": 2}
_FLOATS = {*_BYTES, "F8_E4M3", "F8_E5M2"}


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and tokens; 0 means not known. ``weights_held`` is what the weights take once loaded.

    ``kv_bytes_per_token`` counts every attention layer as one that sees the whole context, so it is an upper bound for
    models with sliding windows. ``context`` is the longest sequence, ``sequences`` how many may run at once.
    """

    model_type: str
    device: Device
    parameters: int
    weights_stored: int
    weights_held: int
    kv_bytes_per_token: int
    context: int
    sequences: int
    physical: int

    @property
    def kv_bytes_per_context(self) -> int:
        return self.kv_bytes_per_token * self.context

    @property
    def fits(self) -> bool:
        """Whether the weights alone fit in memory; true when its size is not known."""
        return not self.physical or self.weights_held < self.physical

    @property
    def contexts_that_fit(self) -> int:
        """Whole contexts that fit beside the weights; 0 as well when it cannot be said."""
        if not self.kv_bytes_per_context:
            return 0
        return max(0, self.physical - self.weights_held) // self.kv_bytes_per_context

    @property
    def most_bytes(self) -> int:
        """Weights, and every sequence at its whole context."""
        return self.weights_held + self.sequences * self.kv_bytes_per_context


def plan_of(settings: Settings, *, physical: int | None = None) -> MemoryPlan:
    """The plan of the model that ``settings`` name. Raises ``ModelLoadError`` as ``plan`` does."""
    dtype, context, sequences = settings.compute.dtype, settings.engine.context_length, settings.engine.max_num_seqs
    if not settings.model:
        return embedded_plan(dtype=dtype, context_length=context, max_num_seqs=sequences, physical=physical)
    return plan(Path(settings.model), dtype=dtype, context_length=context, max_num_seqs=sequences, physical=physical)


def plan(
    model_dir: Path,
    *,
    dtype: str = "auto",
    context_length: int = 0,
    max_num_seqs: int = 1,
    device: Device | None = None,
    physical: int | None = None,
) -> MemoryPlan:
    """The plan for a model directory.

    ``context_length`` 0, and at most: the model's own; ``device`` and ``physical`` (bytes) None: this machine's. On a
    CPU quantized weights are held in full, and everything in float32 unless ``dtype`` names another type.
    Raises ``ModelLoadError`` with one line when files are missing or broken.
    """
    device = device or this_device()
    config = read_config(model_dir)
    tensors = read_tensors(model_dir)
    text = _text_config(config)
    floats = Counter(tensor.dtype for tensor in tensors.values() if tensor.dtype in _BYTES)
    own = _BYTES[floats.most_common(1)[0][0]] if floats else 2
    width = _ASKED.get(dtype) or (4 if device == "cpu" else own)
    held_width = width if device == "cpu" or dtype in _ASKED else 0
    sizes = [_sizes(name, tensors, config, device, held_width) for name in tensors]
    return MemoryPlan(
        model_type=config["model_type"],
        device=device,
        parameters=sum(parameters for parameters, _ in sizes),
        weights_stored=sum(tensor.stored_bytes for tensor in tensors.values()),
        weights_held=sum(held for _, held in sizes),
        kv_bytes_per_token=_kv_values(text) * width,
        context=_least(context_length, _int(text, "max_position_embeddings", "max_seq_len", "n_positions")),
        sequences=max_num_seqs,
        physical=physical_memory() if physical is None else physical,
    )


def embedded_plan(
    *,
    dtype: str = "auto",
    context_length: int = 0,
    max_num_seqs: int = 1,
    device: Device | None = None,
    physical: int | None = None,
) -> MemoryPlan:
    """The plan for the embedded model, SmolLM2-135M-Instruct, before it has ever been converted.

    Its shape: 30 layers, 3 key and value heads of 64, 8192 positions, 134,515,008 parameters in a GGUF file of
    98,362,432 bytes. On a GPU it is held in 4 bits, with a scale and a bias of 16 bits for each 64 values.
    """
    device = device or this_device()
    parameters = 134_515_008
    width = _ASKED.get(dtype) or (4 if device == "cpu" else 2)
    return MemoryPlan(
        model_type="llama",
        device=device,
        parameters=parameters,
        weights_stored=98_362_432,
        weights_held=parameters * width if device == "cpu" else parameters * 9 // 16,
        kv_bytes_per_token=2 * 30 * 3 * 64 * width,
        context=_least(context_length, 8192),
        sequences=max_num_seqs,
        physical=physical_memory() if physical is None else physical,
    )


def this_device() -> Device:
    """Where MLX will compute: Metal on Apple silicon, CUDA where its package is installed, else the CPU."""
    if sys.platform == "darwin" and platform.machine() == "arm64":
        return "gpu"
    for package in ("mlx-cuda-12", "mlx-cuda-13", "mlx-cuda"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        return "gpu"
    return "cpu"


def physical_memory(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory of this machine, or of the container it pretends to be; 0 when the system does not say."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        return min(total, int(limit_file.read_text()))
    except (ValueError, OSError):
        return total


def shown_bytes(count: int) -> str:
    """``count`` in GB or MB of 1000, the way vendors of memory and models count files."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _sizes(
    name: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any], device: Device, width: int
) -> tuple[int, int]:
    """Parameters in a tensor, and bytes it is held in. ``width`` 0: floats stay as stored.

    A quantized weight is a U32 ``P.weight`` with ``P.scales`` (and ``P.biases``) beside it.
    """
    tensor = tensors[name]
    stem, _, leaf = name.rpartition(".")
    weight = tensors.get(f"{stem}.weight")
    quantized = f"{stem}.scales" in tensors and weight is not None and weight.dtype == "U32"
    if quantized and leaf in ("scales", "biases"):
        return 0, 0 if device == "cpu" else tensor.stored_bytes
    if quantized and leaf == "weight":
        elements = tensor.elements * 32 // _bits(stem, config)
        return elements, elements * width if device == "cpu" else tensor.stored_bytes
    if tensor.dtype in _FLOATS and width:
        return tensor.elements, tensor.elements * width
    return tensor.elements, tensor.stored_bytes


def _bits(stem: str, config: Mapping[str, Any]) -> int:
    """Bits per value of one layer: its own entry in ``quantization``, else the common one, else 4 as is usual."""
    quantization = config.get("quantization") or config.get("quantization_config")
    if isinstance(quantization, dict):
        own = quantization.get(stem)
        bits = (own if isinstance(own, dict) else quantization).get("bits", quantization.get("bits"))
        if isinstance(bits, int) and 0 < bits <= 32:
            return bits
    return 4


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part on the language model, where a model that also sees or hears keeps it apart."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _kv_values(config: Mapping[str, Any]) -> int:
    """Keys and values kept per token over all layers.

    0 for multi-head latent attention: some models keep its latent, some what is computed from it.
    """
    if _int(config, "kv_lora_rank"):
        return 0
    layers = _int(config, "num_hidden_layers", "n_layer")
    kinds = config.get("layer_types")
    if isinstance(kinds, list):
        layers = sum("attention" in str(kind) and kind != "linear_attention" for kind in kinds)
    heads = _int(config, "num_attention_heads", "n_head")
    width = _int(config, "head_dim") or (_int(config, "hidden_size", "n_embd") // heads if heads else 0)
    return 2 * layers * (_int(config, "num_key_value_heads") or heads) * width


def _int(config: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that is a positive whole number, else 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


def _least(*numbers: int) -> int:
    """The least of those that are known; 0 is not."""
    return min(filter(None, numbers), default=0)
