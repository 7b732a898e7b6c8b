"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response

from bramley.api.body import read_body
from bramley.api.coalesce import coalesce
from bramley.api.context import ApiContext
from bramley.api.openai import encode
from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.respond import respond
from bramley.api.openai.schema import ChatBody, StreamOptions
from bramley.api.openai.translate import chat_request
from bramley.api.schemas import accepts
from bramley.domain.events import Event, Finish, ReasoningDelta, TextDelta
from bramley.domain.requests import GenerationRequest
from bramley.service.fold import Answer
from bramley.service.generate import Generation


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["chat"])
    fields = FieldCheck()

    @routes.post("/v1/chat/completions", summary="Answer a conversation", **accepts(ChatBody))
    async def chat(request: Request) -> Response:
        body = await read_body(request, ChatBody, context.options.max_body_bytes)
        wanted = chat_request(body, fields)
        writer = ChatWriter(wanted, body.stream_options or StreamOptions())
        return await respond(request, context, wanted, bool(body.stream), writer)

    return routes


class ChatWriter:
    """Implements ``Writer``."""

    def __init__(self, request: GenerationRequest, options: StreamOptions) -> None:
        self._with_logprobs = request.sampling.logprobs is not None
        self._options = options
        self._head = {"id": request.request_id, "created": int(time.time()), "model": request.model}

    def body(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        choice = {
            "index": 0,
            "message": message,
            "logprobs": encode.chat_logprobs(answer.logprobs) if self._with_logprobs else None,
            "finish_reason": encode.finish_reason(answer.finish.reason),
        }
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": encode.usage(answer.finish.usage),
        }

    async def chunks(self, generation: Generation, interval: int) -> AsyncIterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})
        async for events in coalesce(generation.events(), interval):
            if not events:
                yield b""
            for event in events:
                if (chunk := self._event(event)) is not None:
                    yield chunk
                if isinstance(event, Finish) and self._options.include_usage:
                    yield self._frame([], encode.usage(event.usage))

    def _event(self, event: Event) -> bytes | None:
        match event:
            case TextDelta():
                logprobs = encode.chat_logprobs(event.logprobs) if self._with_logprobs else None
                return self._chunk({"content": event.text}, logprobs) if event.text or event.logprobs else None
            case ReasoningDelta():
                return self._chunk({"reasoning_content": event.text})
            case Finish():
                return self._chunk({}, finish_reason=encode.finish_reason(event.reason))
            case _:
                return None

    def _chunk(
        self, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
    ) -> bytes:
        return self._frame([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}])

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        frame = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        if self._options.include_usage:
            frame["usage"] = usage
        return encode.data(frame)
