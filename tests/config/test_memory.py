"""The memory plan against models that MLX wrote."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from bramley.config.memory import MemoryPlan, embedded_plan, physical_memory, plan, this_device
from bramley.domain.errors import ModelLoadError

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


SHAPES = {"first.weight": (128, 64), "first.bias": (128,), "second.weight": (64, 128), "norm.weight": (64,)}
PARAMETERS = 128 * 64 + 128 + 64 * 128 + 64


def layers(dtype: mx.Dtype = mx.float32, group: int = 64, **bits: int) -> dict[str, mx.array]:
    """Weights of ``dtype``; those of the layers named in ``bits`` quantized by MLX."""
    weights = {name: mx.random.normal(shape).astype(dtype) for name, shape in SHAPES.items()}
    for name, width in bits.items():
        packed = mx.quantize(weights[f"{name}.weight"], group_size=group, bits=width)
        weights |= {f"{name}.{part}": array for part, array in zip(("weight", "scales", "biases"), packed, strict=True)}
    return weights


def write(directory: Path, weights: dict[str, mx.array], config: dict[str, Any], name: str = "model") -> int:
    """Save a model and return the bytes of its arrays."""
    mx.save_safetensors(str(directory / f"{name}.safetensors"), weights)
    (directory / "config.json").write_text(json.dumps(config))
    return sum(array.nbytes for array in weights.values())


@pytest.mark.parametrize(("dtype", "own"), [(mx.float32, 4), (mx.bfloat16, 2), (mx.float16, 2)], ids=str)
def test_floats_are_held_in_float32_on_a_cpu_and_as_they_are_on_a_gpu(
    dtype: mx.Dtype, own: int, tmp_path: Path
) -> None:
    stored = write(tmp_path, layers(dtype), CONFIG)
    cpu, gpu = plan(tmp_path, device="cpu"), plan(tmp_path, device="gpu")
    assert cpu.parameters == PARAMETERS
    assert cpu.weights_stored == gpu.weights_stored == stored == PARAMETERS * own
    assert (cpu.weights_held, gpu.weights_held) == (PARAMETERS * 4, stored)
    assert (cpu.kv_bytes_per_token, gpu.kv_bytes_per_token) == (2 * 2 * 2 * 16 * 4, 2 * 2 * 2 * 16 * own)


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 64), (6, 32), (8, 64)])
def test_quantized_weights_are_held_in_full_on_a_cpu_and_as_they_are_on_a_gpu(
    bits: int, group: int, tmp_path: Path
) -> None:
    config = {**CONFIG, "quantization": {"group_size": group, "bits": bits}}
    stored = write(tmp_path, layers(group=group, first=bits, second=bits), config)
    cpu, gpu = plan(tmp_path, device="cpu"), plan(tmp_path, device="gpu")
    assert cpu.parameters == gpu.parameters == PARAMETERS
    assert (cpu.weights_held, gpu.weights_held, gpu.weights_stored) == (PARAMETERS * 4, stored, stored)
    assert plan(tmp_path, device="cpu", dtype="float16").weights_held == PARAMETERS * 2


def test_a_layer_may_be_quantized_in_its_own_way(tmp_path: Path) -> None:
    quantization = {"group_size": 64, "bits": 4, "first": {"group_size": 64, "bits": 8}}
    write(tmp_path, layers(first=8, second=4), {**CONFIG, "quantization": quantization})
    assert plan(tmp_path, device="cpu").parameters == PARAMETERS


def test_the_context_is_the_models_unless_one_is_given(tmp_path: Path) -> None:
    write(tmp_path, layers(), CONFIG)
    own = plan(tmp_path, device="cpu", max_num_seqs=3, physical=1_000_000)
    assert (own.context, own.kv_bytes_per_context) == (128, 128 * 512)
    assert own.contexts_that_fit == (1_000_000 - own.weights_held) // own.kv_bytes_per_context
    assert own.most_bytes == own.weights_held + 3 * own.kv_bytes_per_context
    assert plan(tmp_path, device="cpu", context_length=32).context == 32
    assert plan(tmp_path, device="cpu", context_length=4096).context == 128


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"head_dim": 32}, 2 * 2 * 2 * 32),
        ({"num_key_value_heads": None}, 2 * 2 * 4 * 16),
        ({"layer_types": ["linear_attention", "full_attention"]}, 2 * 1 * 2 * 16),
        ({"layer_types": ["sliding_attention", "full_attention"]}, 2 * 2 * 2 * 16),
        ({"kv_lora_rank": 16, "qk_rope_head_dim": 8}, 0),
        ({"num_attention_heads": None, "num_key_value_heads": None}, 0),
        ({"text_config": {**CONFIG, "num_hidden_layers": 5}}, 2 * 5 * 2 * 16),
    ],
    ids=str,
)
def test_keys_and_values_follow_the_models_shape(config: dict[str, Any], values: int, tmp_path: Path) -> None:
    write(tmp_path, layers(), {**CONFIG, **config})
    assert plan(tmp_path, device="cpu").kv_bytes_per_token == values * 4


def test_a_model_in_several_files_counts_whole(tmp_path: Path) -> None:
    write(tmp_path, layers(), CONFIG, "model-00001-of-00002")
    write(tmp_path, {"other.weight": mx.zeros((8, 8))}, CONFIG, "model-00002-of-00002")
    assert plan(tmp_path, device="cpu").parameters == PARAMETERS + 64


def test_a_model_larger_than_memory_does_not_fit(tmp_path: Path) -> None:
    write(tmp_path, layers(), CONFIG)
    memory = plan(tmp_path, device="cpu", physical=1000)
    assert not memory.fits and memory.contexts_that_fit == 0
    assert plan(tmp_path, device="cpu", physical=0).fits


def shard_missing(directory: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def header(directory: Path, content: Any, length: int | None = None) -> None:
    text = json.dumps(content).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text) if length is None else length) + text)


BROKEN: dict[str, Callable[[Path], object]] = {
    "has no config.json": lambda d: (d / "config.json").unlink(),
    "is not valid JSON": lambda d: (d / "config.json").write_text("{"),
    "does not name a model_type": lambda d: (d / "config.json").write_text("{}"),
    "there is no model*.safetensors": lambda d: (d / "model.safetensors").unlink(),
    "bytes are missing": lambda d: (d / "model.safetensors").write_bytes((d / "model.safetensors").read_bytes()[:-9]),
    "cut short within its header": lambda d: (d / "model.safetensors").write_bytes(
        (d / "model.safetensors").read_bytes()[:40]
    ),
    "is not a safetensors file": lambda d: (d / "model.safetensors").write_text("<!DOCTYPE html><title>404</title>"),
    "is a Git LFS pointer": lambda d: (d / "model.safetensors").write_text("version https://git-lfs.github.com"),
    "its header is malformed": lambda d: header(d, {"a": {"dtype": "F32"}}),
    "header is malformed": lambda d: header(d, [1]),
    "model-2.safetensors is missing": shard_missing,
    "it has no weight_map": lambda d: (d / "model.safetensors.index.json").write_text("[]"),
}


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_model_directory_is_described_in_one_line(line: str, tmp_path: Path) -> None:
    write(tmp_path, layers(), CONFIG)
    BROKEN[line](tmp_path)
    with pytest.raises(ModelLoadError) as caught:
        plan(tmp_path)
    assert line in caught.value.message and "\n" not in caught.value.message and str(tmp_path) in caught.value.message


def test_a_model_that_is_not_there_or_no_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        plan(tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(ModelLoadError, match="is not a directory"):
        plan(tmp_path / "file")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        plan(tmp_path / ("long" * 100))


def test_the_embedded_model_is_planned_as_it_is_converted(smollm2: Path) -> None:
    expected, made = embedded_plan(device="cpu", physical=0), plan(smollm2, device="cpu", physical=0)

    def facts(memory: MemoryPlan) -> tuple[int, ...]:
        return memory.parameters, memory.weights_held, memory.kv_bytes_per_token, memory.context

    assert facts(expected) == facts(made)


def test_a_limit_of_the_container_is_the_memory_there_is(tmp_path: Path) -> None:
    total = physical_memory(tmp_path / "none")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1000000\n")
    assert total > 1 << 28
    assert physical_memory(tmp_path / "max") == total
    assert physical_memory(tmp_path / "limit") == 1_000_000


def test_the_device_is_where_mlx_computes() -> None:
    assert this_device() == ("gpu" if mx.default_device() == mx.Device(mx.gpu) else "cpu")
