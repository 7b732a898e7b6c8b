"""What chat and completions share on the way out."""

import codecs
from collections.abc import Sequence
from typing import Any

import msgspec

from bramley.api.errors import envelope
from bramley.domain.errors import BramleyError
from bramley.domain.events import FinishReason, TokenLogprob
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
            "top_logprobs": [{other.data.decode(errors="replace"): other.logprob for other in t.top} for t in tokens],
            "text_offset": offsets,
        }
