"""From accepted requests to their response, streamed or whole: the same for chat and completions."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from bramley.api.context import ApiContext
from bramley.api.disconnect import until_disconnect
from bramley.api.openai import encode
from bramley.api.sse import EventStream, guarded
from bramley.domain.requests import GenerationRequest
from bramley.service.choices import Choices
from bramley.service.fold import Answer, fold


class Writer(Protocol):
    """Encodes the events of one HTTP request's answers, or their fold."""

    def body(self, answers: Sequence[Answer], prompt_tokens: Sequence[int]) -> dict[str, Any]:
        """``prompt_tokens`` are those of each answer's prompt."""
        ...

    def chunks(self, choices: Choices, interval: int) -> AsyncIterator[bytes]: ...


async def respond(
    request: Request, context: ApiContext, wanted: Sequence[GenerationRequest], stream: bool, writer: Writer
) -> Response:
    """Raises RequestError and ServiceError; for a stream only before its first byte, later they are its events."""
    choices = Choices(await until_disconnect(request.receive, context.generator.open(wanted)))
    if not stream:
        answers = await until_disconnect(request.receive, fold(choices))
        return JSONResponse(writer.body(answers, choices.prompt_tokens))
    try:
        # Until the first token there is time to answer with a status; after that patience a sign of life is due.
        await until_disconnect(request.receive, choices.started(context.options.keepalive_s))
    except BaseException:
        choices.close()
        raise
    chunks = guarded(writer.chunks(choices, context.options.stream_interval), encode.error_data, encode.DONE)
    return EventStream(chunks, choices.nudge, choices.close, context.options.keepalive_s)
