"""Model directories small enough to build in a test, of real architectures with random weights."""

import importlib
import json
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TINY_GEMMA3: dict[str, Any] = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
TINY_MAMBA2: dict[str, Any] = {
    "model_type": "mamba2",
    "architectures": ["Mamba2ForCausalLM"],
    "num_heads": 8,
    "head_dim": 16,
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "state_size": 16,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_bias": False,
    "use_conv_bias": True,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, 100.0],
    "time_step_rank": "auto",
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def write_model(directory: Path, config: dict[str, Any], seed: int = 0) -> Path:
    """Write config.json and random float32 weights. The scale makes logits differ by much more than rounding does."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    definition = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = definition.Model(definition.ModelArgs.from_dict(config))
    mx.random.seed(seed)
    weights = {}
    for name, array in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters())):
        noise = mx.random.normal(array.shape)
        weights[name] = noise * (3.0 / array.shape[-1] ** 0.5) if array.ndim > 1 else 1.0 + 0.1 * noise
    mx.save_safetensors(str(directory / "model.safetensors"), weights)
    return directory


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain caches."""
    return write_model(tmp_path_factory.mktemp("tiny-llama"), TINY_LLAMA)


@pytest.fixture(scope="session")
def tiny_gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rotating caches in every second layer, with a window of 32 tokens."""
    return write_model(tmp_path_factory.mktemp("tiny-gemma3"), TINY_GEMMA3)


@pytest.fixture(scope="session")
def tiny_mamba2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State caches only."""
    return write_model(tmp_path_factory.mktemp("tiny-mamba2"), TINY_MAMBA2)
