"""The servers that can be measured, one row each, and how one is started on a free loopback port and ended."""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from bench.client import HOST, get
from bench.processes import ProcessTree

_POLL_S = 0.1
_STOP_S = 5.0
_TAIL_CHARS = 800


class ServerRow(msgspec.Struct, frozen=True, kw_only=True):
    """``argv`` and the values of ``environment`` may hold {python}, {model}, {host}, {port}, {threads} and {blas}.

    {blas} is the BLAS library Bramley puts under MLX, in the form LD_PRELOAD takes, {cache} the directory it was made
    in. ``request_model`` is the name sent in requests; empty: the first one of /v1/models. ``loop``: no server but an
    engine's raw loop, a process as ``bench.loop`` describes it, which knows the workload "short" only.
    """

    name: str
    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    ready_path: str = "/v1/models"
    request_model: str = ""
    loop: bool = False

    @property
    def wants_blas(self) -> bool:
        return self.loop or any("{blas}" in text for text in (*self.argv, *self.environment.values()))


_LOOP = (
    *("{python}", "-m", "bench.loop", "--model", "{model}"),
    *("--cache", "{cache}", "--threads", "{threads}", "--engine"),
)
_MLX_LM = ("{python}", "-m", "mlx_lm", "server", "--model", "{model}", "--host", "{host}", "--port", "{port}")

ROWS: Mapping[str, ServerRow] = MappingProxyType(
    {
        row.name: row
        for row in (
            ServerRow(
                name="bramley",
                argv=(
                    *("{python}", "-m", "bramley", "serve", "{model}"),
                    *("--host", "{host}", "--port", "{port}", "--threads", "{threads}"),
                ),
                ready_path="/readyz",
            ),
            ServerRow(
                name="mlx_lm",
                argv=_MLX_LM,
                environment={"LD_PRELOAD": "{blas}", "OPENBLAS_NUM_THREADS": "{threads}"},
                ready_path="/health",
                request_model="default_model",
            ),
            ServerRow(name="mlx_lm-installed", argv=_MLX_LM, ready_path="/health", request_model="default_model"),
            ServerRow(name="bramley-loop", argv=(*_LOOP, "bramley"), loop=True),
            ServerRow(name="mlx_lm-loop", argv=(*_LOOP, "mlx_lm"), loop=True),
        )
    }
)


class StartFailed(Exception):
    """A server did not become ready; the message says why and ends with its last output."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What fills the placeholders of a row, and the bounds of a start. ``logs`` receives one file per start.

    ``cache`` is where the library ``blas`` was made.
    """

    model: str
    threads: int
    blas: str
    cache: Path
    logs: Path
    start_timeout_s: float


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A running server. ``started`` is ``time.perf_counter`` when its process was made."""

    name: str
    port: int
    model: str
    tree: ProcessTree
    started: float
    ready_s: float


class ModelCard(msgspec.Struct, frozen=True):
    id: str


class ModelList(msgspec.Struct, frozen=True):
    data: tuple[ModelCard, ...] = ()


def row_from_command(text: str) -> ServerRow:
    """``NAME=COMMAND`` as a row; the command is split like a shell would and run without one.

    Raises ValueError when there is no name or no command.
    """
    name, _, command = text.partition("=")
    argv = tuple(shlex.split(command))
    if not name or not argv:
        raise ValueError(f"--server wants NAME=COMMAND, got {text!r}")
    return ServerRow(name=name, argv=argv)


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders; other braces, as in JSON arguments, stay."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def command(row: ServerRow, settings: Settings, port: int = 0) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment of a row."""
    values = {
        "python": sys.executable,
        "model": settings.model,
        "host": HOST,
        "port": str(port),
        "threads": str(settings.threads),
        "blas": settings.blas,
        "cache": str(settings.cache),
    }
    # A local model needs no hub; without these a server may wait for one that cannot be reached.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    environment |= {name: fill(value, values) for name, value in row.environment.items()}
    return [fill(part, values) for part in row.argv], environment


@contextlib.asynccontextmanager
async def running(row: ServerRow, settings: Settings, label: str) -> AsyncIterator[Target]:
    """Start a server, wait until it is ready, and end its whole process tree when the block is left.

    Raises StartFailed.
    """
    port = free_port()
    argv, environment = command(row, settings, port)
    log = settings.logs / f"{label}.log"
    started = time.perf_counter()
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"{row.name}: {argv[0]} does not start: {error}") from error
    tree = ProcessTree(process.pid)
    try:
        await _until_ready(row, process, port, settings.start_timeout_s, log)
        model = row.request_model or await _first_model(row, port, settings.start_timeout_s)
        ready_s = time.perf_counter() - started
        yield Target(name=row.name, port=port, model=model, tree=tree, started=started, ready_s=ready_s)
    finally:
        await _end(process, tree)


async def _until_ready(
    row: ServerRow, process: asyncio.subprocess.Process, port: int, limit_s: float, log: Path
) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if process.returncode is not None:
            raise StartFailed(f"{row.name} exited with {process.returncode} before it was ready: {_tail(log)}")
        status, _ = await get(port, row.ready_path)
        if status == 200:
            return
        await asyncio.sleep(_POLL_S)
    raise StartFailed(f"{row.name} was not ready after {limit_s:g} s: {_tail(log)}")


async def _first_model(row: ServerRow, port: int, limit_s: float) -> str:
    status, body = await get(port, "/v1/models", timeout_s=limit_s)
    if status == 200:
        with contextlib.suppress(msgspec.DecodeError):
            models = msgspec.json.decode(body, type=ModelList).data
            if models:
                return models[0].id
    raise StartFailed(f"{row.name} lists no model at /v1/models: name one with --served-model {row.name}=ID")


async def _end(process: asyncio.subprocess.Process, tree: ProcessTree) -> None:
    """SIGTERM to the group, a short wait, then SIGKILL to all that was ever seen of the tree."""
    tree.refresh()
    try:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        # A cancellation during the wait ends here too: nothing is left behind.
        tree.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _tail(log: Path) -> str:
    text = log.read_text(errors="replace").strip()
    return text[-_TAIL_CHARS:] or "(no output)"
