"""From an accepted request to its response, streamed or whole: the same for chat and completions."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from bramley.api.context import ApiContext
from bramley.api.disconnect import until_disconnect
from bramley.api.openai import encode
from bramley.api.sse import EventStream, guarded
from bramley.domain.requests import GenerationRequest
from bramley.service.fold import Answer, fold
from bramley.service.generate import Generation


class Writer(Protocol):
    """Encodes the events of one request, or their fold."""

    def body(self, answer: Answer) -> dict[str, Any]: ...

    def chunks(self, generation: Generation, interval: int) -> AsyncIterator[bytes]: ...


async def respond(
    request: Request, context: ApiContext, wanted: GenerationRequest, stream: bool, writer: Writer
) -> Response:
    """Raises RequestError and ServiceError; for a stream only before its first byte, later they are its events."""
    generation = await until_disconnect(request.receive, context.generator.open(wanted))
    if not stream:
        return JSONResponse(writer.body(await until_disconnect(request.receive, fold(generation))))
    try:
        # Until the first token there is time to answer with a status; after that patience a sign of life is due.
        await until_disconnect(request.receive, generation.started(context.options.keepalive_s))
    except BaseException:
        generation.close()
        raise
    chunks = guarded(writer.chunks(generation, context.options.stream_interval), encode.error_data, encode.DONE)
    return EventStream(chunks, generation.nudge, generation.close, context.options.keepalive_s)
