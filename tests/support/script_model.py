"""A tiny model that says what a script tells it, token by token, through any server of MLX models.

    python -m tests.support.script_model OUT [--scripts FILE]

Attention and MLP write nothing, so the last token alone decides: row j of the output matrix points at the embeddings
of the tokens that come before j, and one dimension says "the next is the end". The right token is far enough ahead of
all others that any temperature up to 2 replays the script too. Each piece of a script is a token of its own, of any
bytes (a tag that keeps equal pieces apart is taken off by the tokenizer's decoder). The chat template ends the prompt
with ``<|script_NAME|>``, NAME being the last user message; a plain prompt may end so too. A script ends with
``<|eos|>``, or begins again where it loops; ``max_tokens`` at or below its length ends it with "length".

The prompt is ignored but for its last token: this model says nothing about the correctness of a cache.

File of scripts, by name: a list of pieces; ``{"pieces": [...], "loop": true}``; or ``{"text": "..."}``, which stands
for two scripts, NAME-w (one piece) and NAME-c (one piece a character). ``"repeat": n`` says the pieces n times. A piece
is a string, a list of bytes, or ``{"special": "<|word|>"}``: a control token, which one place of all scripts may hold.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

SCRIPTS = Path(__file__).parent.parent / "data" / "scripts.json"
CONTEXT_LENGTH = 65536
HIDDEN = 1024
BOS, EOS, TURN = "<|bos|>", "<|eos|>", "<|m|>"
_TEMPLATE = (
    f"{{{{ '{BOS}' }}}}{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}"
    "{% set found = namespace(name='') %}{% for m in messages %}"
    f"{{{{ '{TURN}' + m.role + ':' }}}}{{% if m.content is string %}}{{{{ m.content }}}}"
    "{% if m.role == 'user' %}{% set found.name = m.content | trim %}{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|script_' + found.name + '|>' }}{% endif %}"
)
# How far ahead the next token's logit is. The others' are noise of a standard deviation of LEAD / sqrt(HIDDEN).
_LEAD = 60.0


@dataclass(frozen=True)
class Special:
    """A control token as a piece of a script."""

    text: str


Piece = bytes | Special


@dataclass(frozen=True)
class Script:
    name: str
    pieces: tuple[Piece, ...]
    loop: bool = False

    @property
    def text(self) -> str:
        """What a client should see of one round."""
        return b"".join(piece for piece in self.pieces if isinstance(piece, bytes)).decode(errors="replace")


def load_scripts(path: Path = SCRIPTS) -> list[Script]:
    scripts: list[Script] = []
    for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
        scripts += parse_script(name, entry)
    return scripts


def parse_script(name: str, entry: Any) -> list[Script]:
    """One entry of a file of scripts. Raises KeyError and TypeError for a malformed one."""
    if isinstance(entry, list):
        return [Script(name, parse_pieces(entry))]
    if "text" in entry:
        text: str = entry["text"]
        return [Script(f"{name}-w", (text.encode(),)), Script(f"{name}-c", tuple(c.encode() for c in text))]
    return [Script(name, parse_pieces(entry["pieces"]) * entry.get("repeat", 1), entry.get("loop", False))]


def parse_pieces(entries: Iterable[Any]) -> tuple[Piece, ...]:
    return tuple(
        Special(entry["special"])
        if isinstance(entry, dict)
        else entry.encode()
        if isinstance(entry, str)
        else bytes(entry)
        for entry in entries
    )


class ScriptTokenizer:
    """A byte-level tokenizer with one more token for each piece of each script."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        alphabet = {byte: character for character, byte in zip(*_byte_level_alphabet(), strict=True)}
        vocabulary = {character: byte for byte, character in alphabet.items()}
        specials = dict.fromkeys((BOS, EOS, TURN))
        tokens: dict[str, list[str]] = {}
        for script in scripts:
            names = tokens[script.name] = []
            for piece in script.pieces:
                if isinstance(piece, Special):
                    names.append(piece.text)
                    specials[piece.text] = None
                else:
                    names.append("".join(alphabet[byte] for byte in piece) + f"\u27e6{len(vocabulary)}\u27e7")
                    vocabulary[names[-1]] = len(vocabulary)
            specials[start_word(script.name)] = None
        self.backend = Backend(models.BPE(vocab=vocabulary, merges=[]))
        self.backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend.decoder = decoders.Sequence(
            [decoders.Replace(Regex("\u27e6[0-9]+\u27e7"), ""), decoders.ByteLevel()]
        )
        self.backend.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
        self.size = self.backend.get_vocab_size()
        self.ids = {name: tuple(self.id(token) for token in found) for name, found in tokens.items()}

    def id(self, token: str) -> int:
        found = self.backend.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return found

    def save(self, out: Path) -> None:
        """Write the tokenizer's files into ``out``, which is made."""
        out.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(out / "tokenizer.json"))
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "chat_template": _TEMPLATE,
            "model_max_length": CONTEXT_LENGTH,
            "clean_up_tokenization_spaces": False,
        }
        (out / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def start_word(name: str) -> str:
    """The control token that a prompt for this script ends with."""
    return f"<|script_{name}|>"


def build(out: Path, scripts: Iterable[Script] | None = None) -> ScriptTokenizer:
    """Write a model directory. ``scripts`` None: all of tests/data/scripts.json. The same scripts give the same bytes.

    Raises ValueError when a control token stands in two places with different successors.
    """
    scripts = load_scripts() if scripts is None else list(scripts)
    tokenizer = ScriptTokenizer(scripts)
    tokenizer.save(out)
    weights = _weights(tokenizer, _successors(scripts, tokenizer))
    arrays = {name: mx.array(value) for name, value in weights.items()}
    mx.save_safetensors(str(out / "model.safetensors"), arrays, metadata={"format": "mlx"})
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "num_hidden_layers": 1,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-6,
        "vocab_size": tokenizer.size,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT_LENGTH,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.id(BOS),
        "eos_token_id": tokenizer.id(EOS),
        "torch_dtype": "float32",
    }
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tokenizer


def _successors(scripts: Iterable[Script], tokenizer: ScriptTokenizer) -> dict[int, int]:
    end = tokenizer.id(EOS)
    successors: dict[int, int] = {}
    for script in scripts:
        ids = tokenizer.ids[script.name]
        last = ids[0] if script.loop else end
        for token, following in zip((tokenizer.id(start_word(script.name)), *ids), (*ids, last), strict=True):
            if successors.setdefault(token, following) != following:
                raise ValueError(f"Script {script.name!r} holds a control token that goes on otherwise elsewhere.")
    return successors


def _weights(tokenizer: ScriptTokenizer, successors: dict[int, int]) -> dict[str, NDArray[np.float32]]:
    """Float32. Embedding entries are 1 or -1, so that RMS normalization leaves them as they are."""
    end = tokenizer.id(EOS)
    random = np.random.default_rng(0)
    embedding = random.choice([-1.0, 1.0], size=(tokenizer.size, HIDDEN)).astype(np.float32)
    output = np.zeros((tokenizer.size, HIDDEN), np.float32)
    for token in range(tokenizer.size):
        embedding[token, -1] = 1.0 if successors.get(token, end) == end else -1.0
    for token, following in successors.items():
        if following != end:
            output[following, :-1] += embedding[token, :-1] * (_LEAD / HIDDEN)
    output[end, -1] = _LEAD

    def zeros(*shape: int) -> NDArray[np.float32]:
        return np.zeros(shape, np.float32)

    ones = np.ones(HIDDEN, np.float32)
    layer = {
        "input_layernorm.weight": ones,
        "post_attention_layernorm.weight": ones,
        "self_attn.q_proj.weight": zeros(64, HIDDEN),
        "self_attn.k_proj.weight": zeros(64, HIDDEN),
        "self_attn.v_proj.weight": zeros(64, HIDDEN),
        "self_attn.o_proj.weight": zeros(HIDDEN, 64),
        "mlp.gate_proj.weight": zeros(16, HIDDEN),
        "mlp.up_proj.weight": zeros(16, HIDDEN),
        "mlp.down_proj.weight": zeros(HIDDEN, 16),
    }
    return {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": output,
        "model.norm.weight": ones,
        **{f"model.layers.0.{name}": value for name, value in layer.items()},
    }


def _byte_level_alphabet() -> tuple[list[str], list[int]]:
    """GPT-2's printable characters, and the bytes they stand for."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return [*map(chr, own), *(chr(256 + rank) for rank in range(len(others)))], own + others


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a model directory that replays scripts.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--scripts", type=Path, default=SCRIPTS)
    arguments = parser.parse_args()
    build(arguments.out, load_scripts(arguments.scripts))


if __name__ == "__main__":
    main()
