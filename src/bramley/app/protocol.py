"""One HTTP connection: uvicorn's protocol with the limits that a server open to careless clients needs."""

import asyncio
import http
from collections.abc import Callable

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bramley.api.errors import envelope
from bramley.domain.errors import InvalidRequest

MAX_HEAD_BYTES = 64 << 10
# Nothing read of a request for so long, or nothing of an answer taken: nobody is there any more.
READ_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 60.0


class Protocol(HttpToolsProtocol):
    """A request's head has a size, a slow one a time, and a client that stops reading is dropped.

    Pipelining is not served: what comes behind an unanswered request is dropped and the connection closed after the
    answer, as the standard allows. uvicorn would stop reading instead, and so not notice that the client has gone.
    """

    _timer: asyncio.TimerHandle | None = None
    _is_in_head = True
    _is_deaf = False
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm(READ_TIMEOUT_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        super().data_received(data)
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._refuse(431, f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.")
        if self._timer is not None and not self.transport.is_closing():
            self._arm(READ_TIMEOUT_S, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        if not self._is_deaf:
            self._arm(READ_TIMEOUT_S, self._too_slow)

    def on_headers_complete(self) -> None:
        if self._is_deaf:
            return
        running = self.cycle
        super().on_headers_complete()
        self._is_in_head = False
        if self.pipeline:
            self.pipeline.clear()
            self.cycle = running
            running.keep_alive = False
            self._is_deaf = True
            self._disarm()
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_deaf:
            self._disarm()
            super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm(WRITE_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        self._disarm()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP.")

    def _too_slow(self) -> None:
        self._refuse(408, f"Nothing more of the request came for {READ_TIMEOUT_S:g} seconds.")

    def _refuse(self, status: int, message: str) -> None:
        self._disarm()
        body = msgspec.json.encode(envelope(InvalidRequest(message)))
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _arm(self, seconds: float, act: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, act)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
