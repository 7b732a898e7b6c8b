"""Tokens of one sequence on their way from the worker to whoever answers the client."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from bramley.domain.errors import BramleyError, SlowReader
from bramley.domain.wire import Finished, Logprobs, Row


class Batch(msgspec.Struct, frozen=True):
    """All tokens since the last read, which may be none, and the end if it has come."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Logprobs, ...]
    finished: Finished | None


class TokenStream:
    """A buffer between the connection, which never waits, and one reader, which may be slow.

    A reader that is behind gets everything at once, so it catches up by sending larger chunks. One that falls
    more than ``limit`` tokens behind is cut off: its sequence is cancelled and the stream ends with SlowReader.
    """

    def __init__(self, sequence: int, limit: int, cancel: Callable[[int, int | None], None]) -> None:
        self.sequence = sequence
        self._limit = limit
        self._cancel = cancel
        self._token_ids: list[int] = []
        self._logprobs: list[Logprobs] = []
        self._finished: Finished | None = None
        self._error: BramleyError | None = None
        self._cancelled = False
        self._wake = asyncio.Event()
        self._seen_tokens = 0
        self.progress_at = asyncio.get_running_loop().time()
        """When the worker last got on with this sequence, in the event loop's time."""
        self.prompt_logprobs: tuple[Logprobs, ...] = ()
        """Of the prompt's tokens from the second on, if they were asked for; there before the first token."""

    @property
    def ended(self) -> bool:
        return self._finished is not None or self._error is not None

    def push(self, row: Row) -> None:
        if self._cancelled or self.ended:
            return
        self._token_ids += row.token_ids
        self._logprobs += row.logprobs
        self.progress_at = asyncio.get_running_loop().time()
        self._wake.set()
        if len(self._token_ids) > self._limit:
            self.cancel()
            self.fail(
                SlowReader(
                    f"The client is more than {self._limit} tokens behind its own stream, so the answer was ended."
                )
            )

    def saw(self, tokens: int) -> None:
        """The worker has read or generated so many tokens of the sequence by now."""
        if tokens != self._seen_tokens:
            self._seen_tokens = tokens
            self.progress_at = asyncio.get_running_loop().time()

    def finish(self, finished: Finished) -> None:
        if not self.ended:
            self._finished = finished
            self._wake.set()

    def fail(self, error: BramleyError) -> None:
        if not self.ended:
            self._error = error
            self._wake.set()

    def nudge(self) -> None:
        """Let a waiting reader return with nothing, so that it can show its client a sign of life."""
        self._wake.set()

    def cancel(self, keep_tokens: int | None = None) -> None:
        """Ask the worker to end the sequence. Tokens that still come are dropped; its end is still awaited."""
        if not self._cancelled and not self.ended:
            self._cancelled = True
            self._token_ids.clear()
            self._logprobs.clear()
            self._cancel(self.sequence, keep_tokens)

    async def started(self, patience_s: float) -> None:
        """Wait for the first sign of life, but no longer than ``patience_s``. Raises the error if that is the sign."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._wake.wait()
        if self._error is not None and not self._token_ids:
            raise self._error

    async def next(self) -> Batch:
        """Wait for something new. Raises the error that ended the stream once all tokens before it were read."""
        if not self._wake.is_set():
            await self._wake.wait()
        self._wake.clear()
        batch = Batch(tuple(self._token_ids), tuple(self._logprobs), self._finished)
        self._token_ids.clear()
        self._logprobs.clear()
        if self._error is not None and not batch.token_ids:
            self._wake.set()
            raise self._error
        if self.ended:
            self._wake.set()
        return batch

    async def end(self) -> Finished:
        """Wait for the end, dropping tokens. Raises the error that ended the stream."""
        while True:
            batch = await self.next()
            if batch.finished is not None:
                return batch.finished
