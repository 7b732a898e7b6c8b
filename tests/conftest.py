"""Real models and real servers for every test. Models are made once and kept; servers live for the session."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bramley.worker import blas
from tests.support.paths import CACHE

# Before anything imports MLX: the tests of this process compute on the same BLAS as a worker.
blas.preload(CACHE, "auto", 0)

from bramley.runners.embedded import ensure  # noqa: E402
from tests.support.script_model import build  # noqa: E402
from tests.support.server import Server, serving  # noqa: E402

pytest_plugins = ["tests.support.tiny_models"]


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32, from its package."""
    return ensure(CACHE, lambda *_: None)


@pytest.fixture(scope="session")
def script_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that says what its scripts tell it."""
    path = tmp_path_factory.mktemp("models") / "script-model"
    build(path)
    return path


@pytest.fixture(scope="session")
def script_server(script_model: Path) -> Iterator[Server]:
    with serving(script_model) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server(smollm2: Path) -> Iterator[Server]:
    with serving(smollm2) as server:
        yield server
