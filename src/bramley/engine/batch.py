"""The forward passes: caches of the running sequences, prompt chunks, decoding.

Every sequence has caches of its own, of the classes its model's definition asks for, so that sequences with plain,
rotating and state caches run side by side. All arrays of a sequence are here and go when it leaves.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from bramley.engine.scheduler import StepPlan
from bramley.engine.sequence import Sequence

# mlx-lm carries no types.
LayerCaches = list[Any]
Head = Callable[[mx.array], mx.array]

_PROBE = [0]


class Model(Protocol):
    """What the engine asks of a model definition: logits [1, length, vocabulary] of token ids [1, length]."""

    def __call__(self, inputs: mx.array, *, cache: LayerCaches) -> mx.array: ...


class Batch:
    """Running sequences of one model, used from the thread that loaded it.

    ``vocab_size`` is the width of the logits, as a configuration need not say it.
    ``kv_bytes_per_token`` is read off the shapes of keys and values, [1, heads, tokens, width]; a state that does not
    grow counts as nothing, and a window as if it had no end.
    """

    def __init__(self, model: Model) -> None:
        self._model: Any = model
        self._caches: dict[int, LayerCaches] = {}
        probe = make_prompt_cache(self._model)
        logits = self._model(mx.array([_PROBE]), cache=probe)
        mx.eval(logits)
        self.kv_bytes_per_token = sum(
            array.nbytes // array.shape[2]
            for cache in probe
            if hasattr(cache, "keys")
            for array in _arrays(cache.state)
        )
        self.vocab_size = logits.shape[-1]
        self._head = _find_head(self._model, logits)

    def __len__(self) -> int:
        return len(self._caches)

    def join(self, sequence: Sequence) -> None:
        self._caches[sequence.number] = make_prompt_cache(self._model)

    def leave(self, sequence: Sequence) -> None:
        """Drop everything of a sequence; one that never joined has nothing."""
        self._caches.pop(sequence.number, None)

    def forward(self, plan: StepPlan) -> tuple[list[Sequence], mx.array | None]:
        """Carry a plan out. Gives the sequences that get a token, and their logits [sequences, vocabulary].

        Decoding is built but not evaluated; prompt chunks that do not end a prompt are evaluated.
        """
        ready = list(plan.decode)
        logits = [self._decode(sequence) for sequence in plan.decode]
        for sequence, count in plan.prefill:
            last = self._prefill(sequence, count)
            if last is not None:
                ready.append(sequence)
                logits.append(last)
        return ready, mx.concatenate(logits) if logits else None

    def _decode(self, sequence: Sequence) -> mx.array:
        """Logits [1, vocabulary] after the newest token."""
        tokens = mx.array([sequence.generated[-1:]])
        return self._last_logits(tokens, self._caches[sequence.number])

    def _prefill(self, sequence: Sequence, count: int) -> mx.array | None:
        """Read ``count`` prompt tokens; logits [1, vocabulary] when the prompt ends with them."""
        caches = self._caches[sequence.number]
        tokens = mx.array([sequence.prompt[sequence.prefilled : sequence.prefilled + count]])
        sequence.prefilled += count
        if sequence.is_prefilled:
            return self._last_logits(tokens, caches)
        if self._head is None:
            self._model(tokens, cache=caches)
        else:
            self._model.model(tokens, cache=caches)
        mx.eval([array for cache in caches for array in _arrays(cache.state)])
        return None

    def _last_logits(self, tokens: mx.array, caches: LayerCaches) -> mx.array:
        """Logits [1, vocabulary] at the last of ``tokens`` [1, length]; the head sees that position only."""
        if self._head is None:
            logits: mx.array = self._model(tokens, cache=caches)
            return logits[:, -1]
        return self._head(self._model.model(tokens, cache=caches)[:, -1:])[:, 0]


def _find_head(model: Any, logits: mx.array) -> Head | None:
    """The function from the body's output to logits, when one of the usual two gives exactly ``logits``.

    mlx-lm has no name for it, and some models scale or cap what it gives; None means the whole model is called.
    """
    body = getattr(model, "model", None)
    embedding = getattr(body, "embed_tokens", None)
    candidates: list[Head | None] = [getattr(model, "lm_head", None), getattr(embedding, "as_linear", None)]
    try:
        hidden = model.model(mx.array([_PROBE]), cache=make_prompt_cache(model))
    except (AttributeError, TypeError):
        return None
    for head in candidates:
        if head is not None and mx.array_equal(head(hidden), logits).item():
            return head
    return None


def _arrays(state: Any) -> Iterable[mx.array]:
    """The arrays in a cache's state, which nests them in tuples and lists and has None where nothing is yet."""
    if isinstance(state, mx.array):
        yield state
    elif isinstance(state, list | tuple):
        for part in state:
            yield from _arrays(part)
