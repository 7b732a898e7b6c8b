"""The models this server offers, by name."""

import asyncio
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from bramley.domain.errors import ModelNotFound, ShuttingDown
from bramley.domain.wire import Ready
from bramley.service.model_defaults import ModelDefaults, read_defaults
from bramley.service.prompt import Prompter
from bramley.service.tokenizer import Tokenizer
from bramley.workers.base import WorkerHandle
from bramley.workers.supervisor import State, Supervisor


class Health(msgspec.Struct, frozen=True):
    """``state`` as the supervisor sees it; ``reason`` completes "the worker ..."."""

    state: State
    reason: str
    restarts: int
    notes: tuple[str, ...]


class Lease(msgspec.Struct, frozen=True):
    """Everything one request needs of its model."""

    worker: WorkerHandle
    tokenizer: Tokenizer
    prompter: Prompter
    defaults: ModelDefaults
    context_length: int


class Model:
    """One served model: its names, its worker, and the text side of it, which lives in the front."""

    def __init__(self, names: tuple[str, ...], path: Path | None, supervisor: Supervisor, executor: Executor) -> None:
        """``path`` None: the worker decides where the model is, and says so when it is ready."""
        self.names = names
        self.chats = True
        self._path = path
        self.supervisor = supervisor
        self.ready: Ready | None = None
        self._executor = executor
        self._text: asyncio.Future[tuple[Tokenizer, ModelDefaults]] = asyncio.get_running_loop().create_future()

    async def load(self) -> Ready:
        """Load worker and tokenizer for the first time. Raises ModelLoadError."""
        # What the front reads is small; a fault in it is said before the weights are loaded.
        early = await self._read_text(self._path) if self._path else None
        ready = await self.supervisor.start()
        text = early or await self._read_text(Path(ready.path))
        self.ready = ready
        self.chats = text[0].has_template
        if not self._text.done():
            self._text.set_result(text)
        return ready

    async def _read_text(self, path: Path) -> tuple[Tokenizer, ModelDefaults]:
        return await asyncio.get_running_loop().run_in_executor(self._executor, _read_text, path)

    async def lease(self) -> Lease:
        """Wait until the model can answer. Raises ModelUnavailable, ShuttingDown."""
        tokenizer, defaults = await asyncio.shield(self._text)
        worker = await self.supervisor.worker()
        return Lease(worker, tokenizer, Prompter(tokenizer), defaults, worker.ready.context_length)

    async def close(self) -> None:
        """End the worker. Requests that wait for the model fail with ShuttingDown."""
        if not self._text.done():
            self._text.set_exception(ShuttingDown("The server is shutting down."))
            self._text.exception()
        await self.supervisor.stop()

    def health(self) -> Health:
        supervisor = self.supervisor
        state: State = "loading" if supervisor.state == "ready" and self.ready is None else supervisor.state
        return Health(state, supervisor.reason, supervisor.restarts, self.ready.notes if self.ready else ())


class Pool:
    """Finds the model a request names. While a single model is served, every name means that one."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self.models = models
        self._by_name = {name: model for model in models for name in model.names}

    def find(self, name: str) -> Model:
        """Raises ModelNotFound with the names there are."""
        if len(self.models) == 1:
            return self.models[0]
        if (model := self._by_name.get(name)) is None:
            raise self._unknown(name)
        return model

    def describe(self, name: str) -> Model:
        """The model listed under exactly this name, or ``default``. Raises ModelNotFound."""
        if name == "default":
            return self.models[0]
        if (model := self._by_name.get(name)) is None:
            raise self._unknown(name)
        return model

    def _unknown(self, name: str) -> ModelNotFound:
        names = ", ".join(sorted(self._by_name))
        return ModelNotFound(f"The model {name!r} does not exist. Available: {names}.", param="model")


def _read_text(path: Path) -> tuple[Tokenizer, ModelDefaults]:
    return Tokenizer.load(path), read_defaults(path)
