"""How many tokens a streamed chunk holds."""

import msgspec

from bramley.domain.events import Event, Finish, TextDelta


class Coalescer:
    """Joins text of one answer, and holds it until ``interval`` tokens are there; the first never waits."""

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._held: list[Event] = []
        self._tokens = 0
        self._wanted = 1

    def feed(self, batch: list[Event]) -> list[Event]:
        """What is to be sent now; nothing while too little is held."""
        for event in batch:
            _append(self._held, event)
        self._tokens += sum(event.tokens if isinstance(event, TextDelta) else 1 for event in batch)
        if not batch or (self._tokens < self._wanted and not isinstance(batch[-1], Finish)):
            return []
        held, self._held, self._tokens, self._wanted = self._held, [], 0, self._interval
        return held


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
