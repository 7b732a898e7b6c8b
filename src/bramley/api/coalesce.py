"""How many tokens a streamed chunk holds."""

from collections.abc import AsyncIterator

import msgspec

from bramley.domain.events import Event, Finish, TextDelta


async def coalesce(batches: AsyncIterator[list[Event]], interval: int) -> AsyncIterator[list[Event]]:
    """Join neighbouring text, and hold it until ``interval`` tokens are there; the first token never waits.

    An empty list passes through while nothing is held: it is the generation's sign of life.
    """
    held: list[Event] = []
    tokens = 0
    wanted = 1
    async for batch in batches:
        for event in batch:
            _append(held, event)
        tokens += sum(event.tokens if isinstance(event, TextDelta) else 1 for event in batch)
        if batch and tokens < wanted and not isinstance(batch[-1], Finish):
            continue
        yield held
        held, tokens, wanted = [], 0, interval


def _append(held: list[Event], event: Event) -> None:
    if held and isinstance(event, TextDelta) and isinstance(before := held[-1], TextDelta):
        held[-1] = msgspec.structs.replace(
            before,
            text=before.text + event.text,
            logprobs=before.logprobs + event.logprobs,
            tokens=before.tokens + event.tokens,
        )
    else:
        held.append(event)
