"""A model definition as the engine calls it: caches, hidden states without the head, logits of the last position."""

from collections.abc import Callable
from typing import Any, Protocol, cast

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from bramley.engine import caches
from bramley.engine.caches import LayerCaches

Head = Callable[[mx.array], mx.array]

_PROBE = [0]
_SLICE = 256


class Model(Protocol):
    """What the engine asks of a model definition: logits [rows, length, vocabulary] of token ids [rows, length]."""

    def __call__(self, inputs: mx.array, *, cache: LayerCaches) -> mx.array: ...


class TextModel:
    """A loaded model, used from the thread that loaded it.

    ``vocab_size`` is the width of the logits, as a configuration need not say it; ``cost`` is read off the caches of
    one token; ``weight_bytes`` are those of all parameters.
    """

    def __init__(self, model: Model) -> None:
        self._model: Any = model
        probe = self.make_caches()
        logits = self._model(mx.array([_PROBE]), cache=probe)
        mx.eval(logits)
        self.cost = caches.cost_of(probe)
        self.can_merge = caches.can_merge(probe)
        self.vocab_size: int = logits.shape[-1]
        self.weight_bytes = _weight_bytes(model)
        self._head = _find_head(self._model, logits)

    def make_caches(self) -> LayerCaches:
        made: LayerCaches = make_prompt_cache(self._model)
        return made

    def read(self, tokens: mx.array, layers: LayerCaches) -> None:
        """Take token ids [rows, length] into the caches. Evaluates nothing."""
        if self._head is None:
            self._model(tokens, cache=layers)
        else:
            self._model.model(tokens, cache=layers)

    def all_logits(self, tokens: mx.array, layers: LayerCaches) -> mx.array:
        """``read``, and the logits [rows, length, vocabulary] at every position."""
        logits: mx.array = self._model(tokens, cache=layers)
        return logits

    def logit_slices(self, tokens: mx.array, layers: LayerCaches) -> list[mx.array]:
        """``read``, and the logits at every position, in parts [rows, up to 256, vocabulary] of which each can be used
        up before the next is made: all at once may be gigabytes.
        """
        if self._head is None:
            return [self.all_logits(tokens, layers)]
        hidden = self._model.model(tokens, cache=layers)
        return [self._head(hidden[:, start : start + _SLICE]) for start in range(0, hidden.shape[1], _SLICE)]

    def logits(self, tokens: mx.array, layers: LayerCaches) -> mx.array:
        """``read``, and the logits [rows, vocabulary] at the last position; the head sees that position only."""
        if self._head is None:
            logits: mx.array = self._model(tokens, cache=layers)
            return logits[:, -1]
        return self._head(self._model.model(tokens, cache=layers)[:, -1:])[:, 0]


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


def _weight_bytes(model: Any) -> int:
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    return sum(array.nbytes for _, array in named)
