"""POST /v1/completions."""

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
from bramley.api.openai.schema import CompletionBody, StreamOptions
from bramley.api.openai.translate import completion_request
from bramley.api.schemas import accepts
from bramley.domain.events import Finish, TextDelta, TokenLogprob
from bramley.domain.requests import GenerationRequest
from bramley.service.fold import Answer
from bramley.service.generate import Generation


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["completions"])
    fields = FieldCheck()

    @routes.post("/v1/completions", summary="Continue a text", **accepts(CompletionBody))
    async def complete(request: Request) -> Response:
        body = await read_body(request, CompletionBody, context.options.max_body_bytes)
        wanted = completion_request(body, fields)
        writer = CompletionWriter(wanted, body.stream_options or StreamOptions())
        return await respond(request, context, wanted, bool(body.stream), writer)

    return routes


class CompletionWriter:
    """Implements ``Writer``. Both have the same shape."""

    def __init__(self, request: GenerationRequest, options: StreamOptions) -> None:
        self._logprobs = encode.CompletionLogprobs() if request.sampling.logprobs is not None else None
        self._options = options
        self._head = {
            "id": request.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    def body(self, answer: Answer) -> dict[str, Any]:
        choice = self._choice(answer.text, answer.logprobs, encode.finish_reason(answer.finish.reason))
        return {**self._head, "choices": [choice], "usage": encode.usage(answer.finish.usage)}

    async def chunks(self, generation: Generation, interval: int) -> AsyncIterator[bytes]:
        async for events in coalesce(generation.events(), interval):
            if not events:
                yield b""
            for event in events:
                if isinstance(event, TextDelta) and (event.text or event.logprobs):
                    yield self._frame([self._choice(event.text, event.logprobs, None)])
                if isinstance(event, Finish):
                    yield self._frame([self._choice("", (), encode.finish_reason(event.reason))])
                    if self._options.include_usage:
                        yield self._frame([], encode.usage(event.usage))

    def _choice(self, text: str, logprobs: tuple[TokenLogprob, ...], finish_reason: str | None) -> dict[str, Any]:
        encoded = self._logprobs.encode(logprobs) if self._logprobs else None
        return {"index": 0, "text": text, "logprobs": encoded, "finish_reason": finish_reason}

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        frame = {**self._head, "choices": choices}
        if self._options.include_usage:
            frame["usage"] = usage
        return encode.data(frame)
