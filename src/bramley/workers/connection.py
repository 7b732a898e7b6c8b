"""The socket to one worker: frames in, frames out, on the event loop."""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from bramley.domain.wire import MAX_MESSAGE_BYTES, ToWorker, WorkerMessage, frame, front_decoder


class Connection(asyncio.Protocol):
    """Calls ``received`` for each message and ``lost`` once, when the worker has closed its end or sent rubbish."""

    def __init__(self, received: Callable[[WorkerMessage], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, received: Callable[[WorkerMessage], None], lost: Callable[[], None]
    ) -> "Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(received, lost), sock=end)
        return connection

    def send(self, message: ToWorker) -> None:
        """Queue a message; a connection that is lost swallows it, as its end is reported through ``lost``."""
        self.write(frame(message))

    def write(self, data: bytes) -> None:
        """``send`` for a message that was framed already."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        start = 0
        while len(self._buffer) - start >= 4:
            length = int.from_bytes(self._buffer[start : start + 4], "big")
            if length > MAX_MESSAGE_BYTES:
                self.close()
                return
            if len(self._buffer) - start - 4 < length:
                break
            body = memoryview(self._buffer)[start + 4 : start + 4 + length]
            try:
                message = front_decoder.decode(body)
            except msgspec.DecodeError:
                self.close()
                return
            finally:
                body.release()
            start += 4 + length
            self._received(message)
        del self._buffer[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
