"""Text generation with mlx-lm's model definitions."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from bramley.domain.wire import (
    Cancel,
    Embed,
    EngineOptions,
    Failed,
    FailureKind,
    FrontMessage,
    Load,
    Memory,
    Phase,
    Prepare,
    Ready,
    Run,
    Stats,
    Submit,
)
from bramley.domain.wire import ToFront as Message
from bramley.engine import fast, memory
from bramley.engine.engine import Engine, ModelLimits
from bramley.runners import embedded
from bramley.runners.base import Host, Runner
from bramley.runners.facts import ModelFacts, model_facts
from bramley.runners.memory import usable_memory
from bramley.runners.product import check_product
from bramley.runners.weights import load_text_model

KIND = "text"

_DEFAULT_CONTEXT_LENGTH = 4096


def create() -> Runner:
    return TextRunner()


class TextRunner:
    """Loads a model and gives it to an engine; turns messages into the engine's calls."""

    _engine: Engine
    _host: Host

    @property
    def has_work(self) -> bool:
        return self._engine.has_work

    @property
    def phase(self) -> Phase:
        return self._engine.phase

    def load(self, load: Load, host: Host) -> Ready:
        """Raises ModelLoadError. An empty path means the embedded model, converted first if need be."""
        self._host = host
        if load.compute.memory_limit_bytes:
            mx.set_memory_limit(load.compute.memory_limit_bytes)
        check_product()
        path = Path(load.path) if load.path else embedded.ensure(Path(load.cache_dir), host.progress)
        model, config, notes = load_text_model(path, load.compute.dtype, host.progress)
        tricks = fast.apply(model, mx.default_device().type.name)
        weights = mx.get_active_memory()
        facts = model_facts(config)
        context_length = _context_length(facts, load.engine)
        plan = memory.arrange(
            limit=load.compute.memory_limit_bytes, usable=memory.device_memory(usable_memory()), weights=weights
        )
        limits = ModelLimits(context_length, frozenset(facts.eos_token_ids), plan.kv)
        self._engine = Engine(model, limits, load.engine)
        return Ready(
            path=str(path),
            kind=KIND,
            model_type=facts.model_type,
            capabilities=("generate",),
            context_length=context_length,
            vocab_size=self._engine.vocab_size,
            eos_token_ids=facts.eos_token_ids,
            bos_token_id=facts.bos_token_id,
            dtype=_dtype(model),
            device=mx.default_device().type.name,
            kv_bytes_per_token=self._engine.kv_bytes_per_token,
            memory=Memory(
                weights=weights, active=mx.get_active_memory(), peak=mx.get_peak_memory(), cache=mx.get_cache_memory()
            ),
            notes=(*embedded.conversion_notes(path), *notes, *tricks, *self._engine.notes, plan.note),
        )

    def handle(self, message: FrontMessage) -> None:
        match message:
            case Submit():
                self._emit(self._engine.submit(message))
            case Cancel():
                self._emit(self._engine.cancel(message.sequence, message.keep_tokens))
            case Embed() | Prepare() | Run():
                reason = f"This model generates text; it has no {type(message).__name__.lower()} jobs."
                self._host.emit(Failed(kind="request", message=reason, job=message.job))

    def step(self) -> None:
        self._emit(self._engine.step())

    def abort(self, kind: FailureKind, reason: str) -> None:
        self._emit(self._engine.abort(kind, reason))

    def shutdown(self) -> None:
        self._emit(self._engine.cancel_all())

    def stats(self) -> Stats:
        return self._engine.stats()

    def _emit(self, messages: list[Message]) -> None:
        for message in messages:
            self._host.emit(message)


def _context_length(facts: ModelFacts, options: EngineOptions) -> int:
    """Tokens of prompt and answer together: as many as asked for, but no more than the model was made for."""
    own = facts.context_length or _DEFAULT_CONTEXT_LENGTH
    return min(options.context_length, own) if options.context_length else own


def _dtype(model: Any) -> str:
    """The type of most floating-point parameters: what is computed in, also when weights are quantized."""
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    types = [array.dtype for _, array in named if mx.issubdtype(array.dtype, mx.floating)]
    counts = Counter(str(dtype).removeprefix("mlx.core.") for dtype in types)
    return counts.most_common(1)[0][0]
