"""Sampling values a model's authors recommend, from generation_config.json (transformers' GenerationConfig)."""

import json
from pathlib import Path
from typing import Any

import msgspec

from bramley.domain.requests import GenerationRequest
from bramley.domain.sampling import Sampling
from bramley.service.options import GenerationDefaults

# Seeds are numbers of 64 bits.
_SEEDS = 1 << 64


class ModelDefaults(msgspec.Struct, frozen=True):
    """None where the file says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None


def read_defaults(path: Path) -> ModelDefaults:
    """Read a model directory's recommendations. A missing or odd file, or odd values, recommend nothing."""
    try:
        found = json.loads((path / "generation_config.json").read_bytes())
    except (OSError, ValueError):
        return ModelDefaults()
    if not isinstance(found, dict):
        return ModelDefaults()
    if found.get("do_sample") is False:
        return ModelDefaults(temperature=0.0)
    return ModelDefaults(
        temperature=_number(found, "temperature", 0.0, 2.0),
        top_p=_number(found, "top_p", 0.0, 1.0),
        top_k=_whole(found, "top_k"),
        min_p=_number(found, "min_p", 0.0, 1.0),
    )


def _number(found: dict[str, object], name: str, low: float, high: float) -> float | None:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if low <= value <= high else None


def _whole(found: dict[str, object], name: str) -> int | None:
    value = found.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else None


def effective_sampling(
    request: GenerationRequest, flags: GenerationDefaults, model: ModelDefaults, fresh_seed: int, index: int = 0
) -> Sampling:
    """The request's word first, then the server's flags, then the model's authors', then the neutral value.

    Answer ``index`` of a request with a seed has a seed that many higher.
    """
    found: dict[str, float | int | None] = {
        "temperature": flags.temperature if flags.temperature is not None else model.temperature,
        "top_p": flags.top_p if flags.top_p is not None else model.top_p,
        "top_k": model.top_k,
        "min_p": model.min_p,
    }
    wanted: dict[str, Any] = {
        name: value for name, value in found.items() if value is not None and name not in request.sampling_given
    }
    seed = request.sampling.seed
    wanted["seed"] = fresh_seed if seed is None else seed + index if seed + index < _SEEDS else seed + index - _SEEDS
    return msgspec.structs.replace(request.sampling, **wanted)
