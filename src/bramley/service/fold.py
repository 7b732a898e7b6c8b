"""A non-streamed answer is a fold over the same events."""

import msgspec

from bramley.domain.events import (
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)
from bramley.domain.tools import ToolCall
from bramley.service.choices import Choices


class Answer(msgspec.Struct, frozen=True):
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish: Finish


class _Fold:
    """What there is of one answer so far."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._calls: dict[int, ToolCall] = {}
        self._finish: Finish | None = None

    def add(self, event: Event) -> None:
        match event:
            case TextDelta():
                self._text.append(event.text)
                self._logprobs += event.logprobs
            case ReasoningDelta():
                self._reasoning.append(event.text)
            case ToolCallStart():
                self._calls[event.index] = ToolCall(event.call_id, event.name, "")
            case ToolCallDelta():
                call = self._calls[event.index]
                self._calls[event.index] = msgspec.structs.replace(call, arguments=call.arguments + event.arguments)
            case Finish():
                self._finish = event

    def answer(self) -> Answer:
        assert self._finish is not None, "a generation that raises nothing ends with Finish"
        calls = tuple(self._calls.values())
        return Answer("".join(self._text), "".join(self._reasoning), calls, tuple(self._logprobs), self._finish)


async def fold(choices: Choices) -> list[Answer]:
    """Read all answers to their end. Raises ServiceError."""
    folds = [_Fold() for _ in range(len(choices))]
    async with choices:
        async for index, events in choices.events():
            for event in events:
                folds[index].add(event)
    return [one.answer() for one in folds]
