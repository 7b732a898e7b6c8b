"""Tokenizer files out of GGUF metadata (``tokenizer.ggml.*``): byte-level BPE of the kind "gpt2"."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bramley.domain.errors import ModelLoadError

_CONTROL: Final = 3
_SPLITS_DIGITS: Final = "smollm"


def write_tokenizer(metadata: Mapping[str, Any], directory: Path, context_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json, chat template included.

    Raises ModelLoadError for another kind of tokenizer, or when a part of it is missing.
    """
    kind, split = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or split != _SPLITS_DIGITS:
        raise ModelLoadError(f"The model file has a tokenizer of the kind {kind}/{split}, which cannot be converted.")
    try:
        tokens: list[str] = metadata["tokenizer.ggml.tokens"]
        types: list[int] = metadata["tokenizer.ggml.token_type"]
        merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    except KeyError as error:
        raise ModelLoadError(f"The model file lacks {error.args[0]}.") from error
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not all({left, right, left + right} <= vocabulary.keys() for left, right in merges):
        raise ModelLoadError("The model file's tokenizer merges tokens that it does not have.")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    (directory / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            config[f"{role}_token"] = tokens[index]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
