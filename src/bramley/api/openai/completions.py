"""POST /v1/completions."""

import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from bramley.api.body import read_body
from bramley.api.coalesce import Coalescer
from bramley.api.context import ApiContext
from bramley.api.openai import encode
from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.respond import respond
from bramley.api.openai.schema import CompletionBody, StreamOptions
from bramley.api.openai.translate import completion_requests
from bramley.api.schemas import accepts
from bramley.domain.events import Event, Finish, TextDelta, TokenLogprob
from bramley.domain.requests import GenerationRequest
from bramley.service.choices import Choices
from bramley.service.fold import Answer


def router(context: ApiContext) -> APIRouter:
    routes = APIRouter(tags=["completions"])
    fields = FieldCheck(context.options.strict_fields)

    @routes.post("/v1/completions", summary="Continue a text", **accepts(CompletionBody))
    async def complete(request: Request) -> Response:
        body = await read_body(request, CompletionBody, context.options.max_body_bytes)
        wanted = completion_requests(body, fields)
        writer = CompletionWriter(wanted[0], body)
        return await respond(request, context, wanted, bool(body.stream), writer)

    return routes


class CompletionWriter:
    """Implements ``Writer``. Streamed or not, the shape is the same."""

    def __init__(self, request: GenerationRequest, body: CompletionBody) -> None:
        self._answers = request.answers
        self._wanted = body.n or 1
        self._with_logprobs = body.logprobs is not None
        self._options = body.stream_options or StreamOptions()
        self._head = {
            "id": request.request_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    def body(self, answers: Sequence[Answer], prompt_tokens: Sequence[int]) -> dict[str, Any]:
        choices: list[Answer] = []
        for start in range(0, len(answers), self._answers):
            best = sorted(answers[start : start + self._answers], key=_likelihood, reverse=True)
            kept = best if self._answers > self._wanted else answers[start : start + self._answers]
            choices += kept[: self._wanted]
        usages = [answer.finish.usage for answer in answers]
        return {
            **self._head,
            "choices": [self._whole(*one) for one in enumerate(choices)],
            "usage": encode.usage(encode.total(usages, self._answers)),
        }

    def _whole(self, index: int, answer: Answer) -> dict[str, Any]:
        logprobs = self._logprobs()
        return _choice(index, answer.text, logprobs, answer.logprobs, encode.finish_reason(answer.finish.reason))

    async def chunks(self, choices: Choices, interval: int) -> AsyncIterator[bytes]:
        usage = encode.StreamUsage(self._options, choices.prompt_tokens, self._answers)
        held = [Coalescer(interval) for _ in range(len(choices))]
        logprobs = [self._logprobs() for _ in range(len(choices))]
        async for index, events in choices.events():
            if not events:
                yield b""
            for event in held[index].feed(events):
                usage.saw(index, event)
                if (choice := _delta(index, event, logprobs[index])) is not None:
                    yield encode.data(usage.mark({**self._head, "choices": [choice]}))
        if usage.at_end:
            yield encode.data({**self._head, "choices": [], "usage": usage.so_far()})

    def _logprobs(self) -> encode.CompletionLogprobs | None:
        return encode.CompletionLogprobs() if self._with_logprobs else None


def _delta(index: int, event: Event, logprobs: encode.CompletionLogprobs | None) -> dict[str, Any] | None:
    match event:
        case TextDelta() if event.text or event.logprobs:
            return _choice(index, event.text, logprobs, event.logprobs, None)
        case Finish():
            return _choice(index, "", logprobs, (), encode.finish_reason(event.reason))
        case _:
            return None


def _choice(
    index: int,
    text: str,
    logprobs: encode.CompletionLogprobs | None,
    tokens: Sequence[TokenLogprob],
    finish_reason: str | None,
) -> dict[str, Any]:
    encoded = logprobs.encode(tokens) if logprobs else None
    return {"index": index, "text": text, "logprobs": encoded, "finish_reason": finish_reason}


def _likelihood(answer: Answer) -> float:
    """Mean log-probability of its tokens, by which OpenAI's best_of ranks."""
    scores = [token.logprob for token in answer.logprobs if token.logprob is not None]
    return sum(scores) / len(scores) if scores else float("-inf")
