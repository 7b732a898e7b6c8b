"""What chat and completions share on the way out."""

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from bramley.api.errors import envelope
from bramley.api.openai.schema import StreamOptions
from bramley.domain.errors import BramleyError
from bramley.domain.events import Event, Finish, FinishReason, ReasoningDelta, TextDelta, TokenLogprob
from bramley.domain.usage import Usage

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def data(value: dict[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


def error_data(error: BramleyError) -> bytes:
    return data(envelope(error))


def finish_reason(reason: FinishReason) -> str:
    return "stop" if reason == "cancelled" else reason


def usage(found: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "total_tokens": found.total_tokens,
        "prompt_tokens_details": {"cached_tokens": found.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": found.reasoning_tokens},
    }


def total(usages: Sequence[Usage], answers: int) -> Usage:
    """Of all answers, ``answers`` to each prompt in turn: a prompt counts once, whoever has to read it."""
    found = Usage()
    for place, one in enumerate(usages):
        own = Usage(completion_tokens=one.completion_tokens, reasoning_tokens=one.reasoning_tokens)
        found += own if place % answers else one
    return found


class StreamUsage:
    """What a stream says of usage: nothing; at its end; or in each chunk, what it is so far."""

    def __init__(self, options: StreamOptions, prompt_tokens: Sequence[int], answers: int) -> None:
        self.at_end = bool(options.include_usage)
        self._in_chunks = self.at_end and bool(options.continuous_usage_stats)
        self._answers = answers
        self._usages = [Usage(prompt_tokens=count) for count in prompt_tokens]

    def saw(self, index: int, event: Event) -> None:
        if isinstance(event, Finish):
            self._usages[index] = event.usage
        elif isinstance(event, TextDelta | ReasoningDelta):
            self._usages[index] += Usage(completion_tokens=event.tokens)

    def mark(self, frame: dict[str, Any]) -> dict[str, Any]:
        """A chunk's frame, with its ``usage`` if it is to have one."""
        if self.at_end:
            frame["usage"] = self.so_far() if self._in_chunks else None
        return frame

    def so_far(self) -> dict[str, Any]:
        return usage(total(self._usages, self._answers))


def chat_logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [{**_token(token), "top_logprobs": [_token(other) for other in token.top]} for token in tokens],
        "refusal": None,
    }


def _token(token: TokenLogprob) -> dict[str, Any]:
    text = token.data.decode(errors="replace")
    return {"token": text, "logprob": token.logprob, "bytes": list(token.data)}


class CompletionLogprobs:
    """The older shape, whose ``text_offset`` counts code points of the text returned so far."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def encode(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.data))
        return {
            "tokens": [token.data.decode(errors="replace") for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_alternatives(token) for token in tokens],
            "text_offset": offsets,
        }


def _alternatives(token: TokenLogprob) -> dict[str, float | None] | None:
    """None for a first token, which has no alternatives."""
    if token.logprob is None:
        return None
    return {other.data.decode(errors="replace"): other.logprob for other in token.top}
