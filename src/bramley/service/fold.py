"""A non-streamed answer is a fold over the same events."""

import msgspec

from bramley.domain.events import (
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)
from bramley.domain.tools import ToolCall
from bramley.service.generate import Generation


class Answer(msgspec.Struct, frozen=True):
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish


async def fold(generation: Generation) -> Answer:
    """Read a generation to its end. Raises ServiceError."""
    text: list[str] = []
    reasoning: list[str] = []
    logprobs: list[TokenLogprob] = []
    calls: dict[int, ToolCall] = {}
    finish: Finish | None = None
    async with generation:
        async for events in generation.events():
            for event in events:
                match event:
                    case TextDelta():
                        text.append(event.text)
                        logprobs += event.logprobs
                    case ReasoningDelta():
                        reasoning.append(event.text)
                    case ToolCallStart():
                        calls[event.index] = ToolCall(event.call_id, event.name, "")
                    case ToolCallDelta():
                        call = calls[event.index]
                        calls[event.index] = msgspec.structs.replace(call, arguments=call.arguments + event.arguments)
                    case Finish():
                        finish = event
    assert finish is not None, "a generation that raises nothing ends with Finish"
    return Answer("".join(text), "".join(reasoning), tuple(calls.values()), tuple(logprobs), finish)
