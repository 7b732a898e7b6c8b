"""The one stream that serves every protocol: pieces of text go into the parsers, events come out.

``Piece`` is the detokenizer's output. Events are what a protocol encodes one by one, or folds into one answer.
"""

from typing import Literal

import msgspec

from bramley.domain.usage import Timings, Usage

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability (natural) of one token; None of a text's first, which nothing comes before.

    ``data`` are its exact bytes, which may be part of a character.
    """

    token_id: int
    logprob: float | None
    data: bytes = b""
    top: tuple["TokenLogprob", ...] = ()


class Piece(msgspec.Struct, frozen=True):
    """Text of one or more tokens, complete in UTF-8.

    ``is_special`` marks a control token: the same letters typed by a user are not special. ``text`` may be empty
    when the tokens' bytes are still part of an unfinished character; their log-probabilities wait with them.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    is_special: bool = False
    logprobs: tuple[TokenLogprob, ...] = ()


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: int = 0


class ReasoningDelta(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    tokens: int = 0


class ToolCallStart(msgspec.Struct, frozen=True):
    index: int
    call_id: str
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True):
    index: int
    arguments: str


class ToolCallEnd(msgspec.Struct, frozen=True):
    index: int


class Finish(msgspec.Struct, frozen=True):
    """Last event of a sequence. ``stop`` is the stop string or None when an end-of-turn token ended it."""

    reason: FinishReason
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop: str | None = None


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | Finish
