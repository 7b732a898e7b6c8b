"""The tiny server as a row of the server table, and as a running target."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.servers import ServerRow, Settings, Target, running

TINY = Path(__file__).with_name("tiny_server.py")


@pytest.fixture
def tiny_row() -> ServerRow:
    return ServerRow(name="tiny", argv=(sys.executable, str(TINY), "{port}"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(model="some/model", threads=1, blas="", cache=tmp_path, logs=tmp_path, start_timeout_s=60.0)


@pytest.fixture
async def tiny(tiny_row: ServerRow, settings: Settings) -> AsyncIterator[Target]:
    async with running(tiny_row, settings, "tiny") as target:
        yield target
