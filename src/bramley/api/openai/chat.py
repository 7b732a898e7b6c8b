"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from bramley.api.body import read_body
from bramley.api.coalesce import Coalescer
from bramley.api.context import ApiContext
from bramley.api.openai import encode
from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.respond import respond
from bramley.api.openai.schema import ChatBody, StreamOptions
from bramley.api.openai.translate import chat_request
from bramley.api.schemas import accepts
from bramley.domain.events import Event, Finish, ReasoningDelta, TextDelta
from bramley.domain.requests import GenerationRequest
from bramley.service.choices import Choices
from bramley.service.fold import Answer


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["chat"])
    fields = FieldCheck(context.options.strict_fields)

    @routes.post("/v1/chat/completions", summary="Answer a conversation", **accepts(ChatBody))
    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatBody, context.options.max_body_bytes)
        wanted = chat_request(body, fields, context.options.template_kwargs)
        writer = ChatWriter(wanted, body.stream_options or StreamOptions())
        return await respond(request, context, [wanted], bool(body.stream), writer)

    return routes


class ChatWriter:
    """Implements ``Writer``."""

    def __init__(self, request: GenerationRequest, options: StreamOptions) -> None:
        self._with_logprobs = request.sampling.logprobs is not None
        self._options = options
        self._head = {"id": request.request_id, "created": int(time.time()), "model": request.model}

    def body(self, answers: Sequence[Answer], prompt_tokens: Sequence[int]) -> dict[str, Any]:
        usages = [answer.finish.usage for answer in answers]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [self._choice(*one) for one in enumerate(answers)],
            "usage": encode.usage(encode.total(usages, len(answers))),
        }

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        return {
            "index": index,
            "message": message,
            "logprobs": encode.chat_logprobs(answer.logprobs) if self._with_logprobs else None,
            "finish_reason": encode.finish_reason(answer.finish.reason),
        }

    async def chunks(self, choices: Choices, interval: int) -> AsyncIterator[bytes]:
        usage = encode.StreamUsage(self._options, choices.prompt_tokens, len(choices))
        held = [Coalescer(interval) for _ in range(len(choices))]
        for index in range(len(choices)):
            yield self._chunk(usage, index, {"role": "assistant", "content": ""})
        async for index, events in choices.events():
            if not events:
                yield b""
            for event in held[index].feed(events):
                usage.saw(index, event)
                for chunk in self._event(usage, index, event):
                    yield chunk
        if usage.at_end:
            yield encode.data({**self._head, **_OBJECT, "choices": [], "usage": usage.so_far()})

    def _event(self, usage: encode.StreamUsage, index: int, event: Event) -> Iterator[bytes]:
        match event:
            case TextDelta() if event.text or event.logprobs:
                logprobs = encode.chat_logprobs(event.logprobs) if self._with_logprobs else None
                yield self._chunk(usage, index, {"content": event.text}, logprobs)
            case ReasoningDelta():
                yield self._chunk(usage, index, {"reasoning_content": event.text})
            case Finish():
                yield self._chunk(usage, index, {}, finish_reason=encode.finish_reason(event.reason))

    def _chunk(
        self,
        usage: encode.StreamUsage,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return encode.data(usage.mark({**self._head, **_OBJECT, "choices": [choice]}))


_OBJECT = {"object": "chat.completion.chunk"}
