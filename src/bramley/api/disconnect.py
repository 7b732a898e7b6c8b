"""A client that leaves ends its work: whatever is awaited for it is cancelled at once."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientLeft(Exception):
    """The socket was closed while an answer was being made; there is no one to tell."""


async def left(receive: Receive) -> None:
    """Return when the client has gone. The body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Await ``work``, but cancel it and raise ClientLeft as soon as the client goes away."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(left(receive))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft
    finally:
        for pending in (task, leaving):
            pending.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
