"""Every response carries an id that stands in the log too, under the names both SDKs look for."""

import logging
import secrets
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("bramley.access")


class RequestIdMiddleware:
    """Names the request, and logs method, path, status and duration when it has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 499

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                found = MutableHeaders(scope=message)
                found["x-request-id"] = found["request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, named)
        finally:
            duration_ms = (time.monotonic() - started) * 1000
            log.info("%s %s %d %.0f ms %s", scope["method"], scope["path"], status, duration_ms, request_id)
