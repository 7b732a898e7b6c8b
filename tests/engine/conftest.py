"""Loaded models for the engine's tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.utils import load_model

from bramley.domain.wire import EngineOptions
from bramley.engine.engine import Engine, ModelLimits

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def llama_model(tiny_llama: Path) -> Any:
    return load_model(tiny_llama)[0]


@pytest.fixture
def make_engine(llama_model: Any) -> MakeEngine:
    """An engine on the tiny llama, or on ``model``, with a chunk size that does not depend on the time steps take.

    Other arguments are EngineOptions.
    """

    def make(model: Any = None, *, ahead: bool = True, kv_bytes: int = 1 << 40, **options: Any) -> Engine:
        limits = ModelLimits(context_length=2048, eos_token_ids=frozenset({2}), kv_bytes=kv_bytes)
        options = {"target_gap_ms": 1e9, **options}
        return Engine(llama_model if model is None else model, limits, EngineOptions(**options), ahead=ahead)

    return make
