"""What a model directory's configuration says about its model, under the names different families give it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

_CONTEXT: Final = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "n_positions",
    "n_ctx",
    "seq_length",
)
_VOCABULARY: Final = ("vocab_size", "padded_vocab_size", "embedding_size")


@dataclass(frozen=True)
class ModelFacts:
    """``context_length`` and ``vocab_size`` in tokens, 0 when the configuration does not say."""

    model_type: str
    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None


def model_facts(config: Mapping[str, Any]) -> ModelFacts:
    """Facts of config.json; where several modalities share a model, those of its ``text_config`` come first."""
    text = text_config(config)
    both = (text, config)
    bos = _first(both, ("bos_token_id",))
    return ModelFacts(
        model_type=str(config.get("model_type", "")),
        context_length=_first(both, _CONTEXT) or 0,
        vocab_size=_first(both, _VOCABULARY) or 0,
        eos_token_ids=eos_token_ids((config, text)),
        bos_token_id=bos,
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where the language model's own sizes stand."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def eos_token_ids(configs: Iterable[Mapping[str, Any]]) -> tuple[int, ...]:
    """All that end a turn according to any of ``configs`` (config.json, generation_config.json), ascending."""
    found: set[int] = set()
    for config in configs:
        value = config.get("eos_token_id")
        found.update(filter(_is_count, value if isinstance(value, list) else [value]))
    return tuple(sorted(found))


def _first(configs: Iterable[Mapping[str, Any]], names: Iterable[str]) -> int | None:
    wanted = tuple(names)
    values = [config.get(name) for config in configs for name in wanted]
    return next(filter(_is_count, values), None)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
