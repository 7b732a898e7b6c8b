"""The answers of one request: running side by side, read as one stream of events."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self

from bramley.domain.events import Event, Finish
from bramley.service.generate import Generation

Events = tuple[int, list[Event]]


class Choices:
    """At least one. Leave the context, or ``close``, and the worker stops working on all of them."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        self._generations = tuple(generations)
        self._arrived: asyncio.Queue[Events | BaseException] = asyncio.Queue(len(generations))
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._generations)

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        return tuple(generation.prompt_tokens for generation in self._generations)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for generation in self._generations:
            generation.close()
        for task in self._tasks:
            task.cancel()

    async def started(self, patience_s: float) -> None:
        """Wait for the first token of any at most ``patience_s``. Raises RequestError, ServiceError."""
        tasks = [asyncio.ensure_future(one.started(patience_s)) for one in self._generations]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    def nudge(self) -> None:
        """Let ``events`` yield an empty list soon."""
        if len(self._generations) == 1:
            self._generations[0].nudge()
        elif not self._arrived.full():
            self._arrived.put_nowait((0, []))

    async def events(self) -> AsyncIterator[Events]:
        """The index of an answer, and what is new of it; the last of each is Finish. Raises ServiceError.

        A list is empty only after ``nudge``.
        """
        if len(self._generations) == 1:
            async for events in self._generations[0].events():
                yield 0, events
            return
        self._tasks = [asyncio.create_task(self._pass_on(*one)) for one in enumerate(self._generations)]
        running = len(self._tasks)
        while running:
            arrived = await self._arrived.get()
            if isinstance(arrived, BaseException):
                raise arrived
            running -= bool(arrived[1]) and isinstance(arrived[1][-1], Finish)
            yield arrived

    async def _pass_on(self, index: int, generation: Generation) -> None:
        try:
            async for events in generation.events():
                await self._arrived.put((index, events))
        except Exception as error:  # noqa: BLE001 - raised where the events are read
            await self._arrived.put(error)
