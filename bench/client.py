"""A streaming client that costs little: it stamps what arrives and parses it when the measured time is over.

One connection per request over 127.0.0.1, HTTP/1.1 with ``Connection: close``, answers as server-sent events.
Framing: RFC 9112 section 7.1 (chunked) and the WHATWG text/event-stream format.
"""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

HOST = "127.0.0.1"
_DONE = b"[DONE]"
_ERROR_BYTES = 4096

Watch = Callable[[float], bool]


class Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct, frozen=True):
    delta: Delta | None = None
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct, frozen=True):
    """The parts of a chat completion chunk that are measured."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: Any = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Times are seconds of ``time.perf_counter``; ``times`` has one per piece of text."""

    sent: float
    ended: float
    status: int = 0
    error: str = ""
    text: str = ""
    times: tuple[float, ...] = ()
    usage: Usage | None = None
    finish_reason: str = ""

    @property
    def ok(self) -> bool:
        return not self.error and bool(self.times)

    @property
    def tokens(self) -> int:
        """Completion tokens as the server counts them; pieces of text where it sends no usage."""
        return self.usage.completion_tokens if self.usage else len(self.times)

    @property
    def first(self) -> float:
        """Seconds from sending the request to the first piece of text."""
        return self.times[0] - self.sent

    @property
    def gaps(self) -> tuple[float, ...]:
        """Seconds between pieces of text."""
        return tuple(later - earlier for earlier, later in itertools.pairwise(self.times))


class ResponseReader:
    """Bytes of one HTTP response in, bytes of its body out. ``status`` is 0 until the head is complete."""

    def __init__(self) -> None:
        self.status = 0
        self._pending = b""
        self._chunked = False
        self._chunk_left = 0

    def feed(self, data: bytes) -> bytes:
        self._pending += data
        if not self.status and not self._read_head():
            return b""
        body, self._pending = self._unframe(self._pending) if self._chunked else (self._pending, b"")
        return body

    def _read_head(self) -> bool:
        head, separator, rest = self._pending.partition(b"\r\n\r\n")
        if not separator:
            return False
        lines = head.split(b"\r\n")
        self.status = int(lines[0].split(b" ", 2)[1])
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (h.partition(b":") for h in lines)}
        self._chunked = headers.get(b"transfer-encoding") == b"chunked"
        self._pending = rest
        return True

    def _unframe(self, data: bytes) -> tuple[bytes, bytes]:
        """Body bytes of complete or begun chunks, and what is left for the next call."""
        parts = []
        while data:
            if self._chunk_left > 2:
                part = data[: self._chunk_left - 2]
                parts.append(part)
            elif self._chunk_left:
                part = data[: self._chunk_left]
            else:
                size, newline, data = data.partition(b"\r\n")
                if not newline:
                    return b"".join(parts), size
                self._chunk_left = int(size.split(b";")[0], 16) + 2
                continue
            self._chunk_left -= len(part)
            data = data[len(part) :]
        return b"".join(parts), b""


class EventReader:
    """Bytes of one HTTP response in, ``data:`` payloads out. Any split of the bytes gives the same payloads.

    ``refusal`` is the beginning of the body where the status is not 200.
    """

    def __init__(self) -> None:
        self.refusal = b""
        self._response = ResponseReader()
        self._line = b""

    @property
    def status(self) -> int:
        return self._response.status

    def feed(self, data: bytes) -> Iterator[bytes]:
        body = self._response.feed(data)
        if self.status != 200:
            self.refusal = (self.refusal + body)[:_ERROR_BYTES]
            return
        lines = (self._line + body).split(b"\n")
        self._line = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


class AnswerBuilder:
    """Folds stamped bytes of one response into an ``Answer``."""

    def __init__(self, sent: float) -> None:
        self._reader = EventReader()
        self._decoder = msgspec.json.Decoder(Chunk)
        self._sent = sent
        self._text: list[str] = []
        self._error = ""
        self._finish_reason = ""
        self._usage: Usage | None = None
        self.times: list[float] = []

    def feed(self, at: float, data: bytes) -> None:
        for payload in self._reader.feed(data):
            if payload == _DONE:
                return
            try:
                self._take(at, self._decoder.decode(payload))
            except msgspec.DecodeError as error:
                self._error = self._error or f"event not understood: {error}: {payload[:200]!r}"

    def _take(self, at: float, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._error = self._error or str(chunk.error)[:300]
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            delta = choice.delta or Delta()
            text = (delta.content or "") + (delta.reasoning_content or delta.reasoning or "")
            if text:
                self.times.append(at)
                self._text.append(text)
            self._finish_reason = choice.finish_reason or self._finish_reason

    def finish(self, ended: float, error: str = "") -> Answer:
        status = self._reader.status
        if status not in (0, 200):
            error = f"HTTP {status}: {self._reader.refusal.decode(errors='replace')[:300]}"
        return Answer(
            sent=self._sent,
            ended=ended,
            status=status,
            error=self._error or error,
            text="".join(self._text),
            times=tuple(self.times),
            usage=self._usage,
            finish_reason=self._finish_reason,
        )


class _Exchange(asyncio.Protocol):
    """One request and the stamped bytes of its response."""

    def __init__(self, request: bytes, watch: Watch | None) -> None:
        self.received: list[tuple[float, bytes]] = []
        self.sent = 0.0
        self.ended = 0.0
        self.over = asyncio.get_running_loop().create_future()
        self.lost: Exception | None = None
        self.complete = False
        self._request = request
        self._tail = b""
        self._watch = watch
        self._live: AnswerBuilder | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.sent = time.perf_counter()
        self._live = AnswerBuilder(self.sent) if self._watch else None
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self.received.append((now, data))
        self._tail = self._tail[-len(_DONE) :] + data[-64:]
        if _DONE in self._tail:
            self._end(complete=True)
        elif self._watch and self._live:
            seen = len(self._live.times)
            self._live.feed(now, data)
            if any([self._watch(at) for at in self._live.times[seen:]]):
                self._end(complete=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self._end(complete=False)

    def _end(self, *, complete: bool) -> None:
        if not self.over.done():
            self.ended = time.perf_counter()
            self.complete = complete
            self.over.set_result(None)

    def answer(self, error: str) -> Answer:
        builder = AnswerBuilder(self.sent)
        for at, data in self.received:
            builder.feed(at, data)
        if not error and not self.complete:
            error = f"connection closed before the end: {self.lost or 'end of file'}"
        return builder.finish(self.ended or time.perf_counter(), error)


def _encode(path: str, body: dict[str, Any]) -> bytes:
    payload = msgspec.json.encode(body)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + payload


async def _exchange(port: int, request: bytes, timeout_s: float, watch: Watch | None) -> tuple[_Exchange, str]:
    exchange = _Exchange(request, watch)
    transport: asyncio.BaseTransport | None = None
    error = ""
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: exchange, HOST, port)
            await exchange.over
    except TimeoutError:
        error = f"no end after {timeout_s:g} s"
    except OSError as failure:
        error = f"no connection: {failure}"
    finally:
        # Also on cancellation: closing the socket is how a client leaves.
        if transport:
            transport.close()
    return exchange, error


async def ask(port: int, body: dict[str, Any], *, timeout_s: float, watch: Watch | None = None) -> Answer:
    """Stream one chat completion. Never raises for what a server does: see ``Answer.error``.

    ``watch`` is called with the time of each piece of text while it streams; True ends the request there.
    """
    (answer,) = await ask_all(port, [body], timeout_s=timeout_s, watch=watch)
    return answer


async def ask_all(
    port: int,
    bodies: list[dict[str, Any]],
    *,
    timeout_s: float,
    watch: Watch | None = None,
    ended: Callable[[], None] | None = None,
) -> list[Answer]:
    """Stream all requests at once. When the last has ended ``ended`` is called, and then the answers are parsed."""
    requests = [_encode("/v1/chat/completions", body) for body in bodies]
    pairs = await asyncio.gather(*[_exchange(port, request, timeout_s, watch) for request in requests])
    if ended:
        ended()
    return [exchange.answer(error) for exchange, error in pairs]


async def get(port: int, path: str, *, timeout_s: float = 5.0) -> tuple[int, bytes]:
    """Status and body of a GET; status 0 when nobody answers in time."""
    response = ResponseReader()
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
                body = response.feed(await reader.read())
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return 0, b""
    return response.status, body
