"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as a response."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bramley.api.disconnect import left
from bramley.api.errors import unexpected
from bramley.domain.errors import BramleyError

KEEPALIVE = b": keep-alive\n\n"


async def guarded(
    chunks: AsyncIterator[bytes], failed: Callable[[BramleyError], bytes], end: bytes
) -> AsyncGenerator[bytes, None]:
    """The border of a streamed request: an error becomes the protocol's own event, and the stream still ends."""
    try:
        async for chunk in chunks:
            yield chunk
    except BramleyError as error:
        yield failed(error)
    except Exception as error:  # noqa: BLE001 - the request border
        yield failed(unexpected(error))
    yield end


class EventStream(Response):
    """Sends ``chunks`` as they come; an empty chunk is sent as a comment that keeps the connection alive.

    ``nudge`` is called when nothing was sent for ``keepalive_s``, to make ``chunks`` yield. ``close`` is called
    once, however the stream ends. The client's leaving is noticed also while nothing is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        nudge: Callable[[], None],
        close: Callable[[], None],
        keepalive_s: float,
    ) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._nudge = nudge
        self._close = close
        self._keepalive_s = keepalive_s
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = asyncio.ensure_future(self._write(send))
        others = [asyncio.ensure_future(left(receive)), asyncio.ensure_future(self._keep_alive())]
        try:
            await asyncio.wait({writer, others[0]}, return_when=asyncio.FIRST_COMPLETED)
            if not writer.done():
                scope.setdefault("state", {})["outcome"] = " client left (499)"
        finally:
            # The worker is told before anything is awaited here.
            self._close()
            for task in (writer, *others):
                task.cancel()
            await asyncio.gather(writer, *others, return_exceptions=True)
            await self._chunks.aclose()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(OSError):
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk or KEEPALIVE, "more_body": True})
                self._sent += 1
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self) -> None:
        while True:
            before = self._sent
            await asyncio.sleep(self._keepalive_s)
            if self._sent == before:
                self._nudge()
