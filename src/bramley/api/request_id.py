"""Every response carries an id that stands in the log too, under the names both SDKs look for."""

import logging
import secrets
import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("bramley.access")


# Asked every few seconds by whoever watches the server.
PROBES = frozenset({"/health", "/livez", "/readyz", "/metrics"})


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
            try:
                await send(message)
            except RuntimeError as error:
                # uvloop's word for a connection that is closed already.
                raise ConnectionResetError from error

        try:
            await self._app(scope, receive, named)
        finally:
            duration_ms = (time.monotonic() - started) * 1000
            level = logging.DEBUG if scope["path"] in PROBES else logging.INFO
            what = f"{scope['method']} {scope['path'][:200]} {status} {duration_ms:.0f} ms"
            log.log(level, "%s %s%s", what, request_id, scope["state"].get("outcome", ""))
