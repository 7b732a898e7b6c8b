"""From pieces to events: reasoning is taken out first, then stop strings end the answer, then tool calls are read.

So a stop string never matches in hidden reasoning, and a tool call never swallows one.
"""

from collections.abc import Sequence

import msgspec

from bramley.domain.events import Event, Piece, TextDelta, TokenLogprob
from bramley.parsers.base import Item, Parser
from bramley.parsers.stops import StopMatcher


class Pipeline:
    """One per sequence; used from one thread at a time, raises nothing.

    Control tokens that no parser claims lose their text last; their log-probabilities stay, with no bytes, so that
    there is one entry a token and the bytes joined are the text. Neither they nor tokens of an unfinished character
    make an event of their own: they go with the next text, or with the last event.
    """

    def __init__(
        self, stop: tuple[str, ...] = (), reasoning: Parser | None = None, tools: Parser | None = None
    ) -> None:
        """``stop`` holds no empty string."""
        self._reasoning = reasoning
        self._stops = StopMatcher(stop) if stop else None
        self._tools = tools
        self._is_bare = not stop and reasoning is None and tools is None
        self._seen = 0
        self._text = _Gathered()

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the answer. Later pieces are ignored, and ``finish`` has nothing to give."""
        return self._stops.matched if self._stops else None

    @property
    def keep_tokens(self) -> int:
        """Tokens of the answer: after a stop, up to and including the one whose text completed the match."""
        return self._seen

    def feed(self, pieces: Sequence[Piece]) -> list[Event]:
        """Everything these pieces settle, text in one event where nothing comes between."""
        events: list[Event] = []
        for piece in pieces:
            if self.stopped is not None:
                break
            self._seen += len(piece.token_ids)
            if self._is_bare:
                self._text.add(piece)
            else:
                self._gather(self._advance([piece], closing=False), events)
        self._text.flush(events, closing=self.stopped is not None)
        return events

    def finish(self) -> list[Event]:
        """The last events: what was held back until now. Text released here may still complete a stop string."""
        events: list[Event] = []
        if self.stopped is None:
            self._gather(self._advance([], closing=True), events)
            self._text.flush(events, closing=True)
        return events

    def _advance(self, items: list[Item], closing: bool) -> list[Item]:
        if self._reasoning is not None:
            items = _through(self._reasoning, items, closing)
        if self._stops is not None:
            items = _until_stop(self._stops, items, closing)
            closing = closing or self._stops.matched is not None
        if self._tools is not None:
            items = _through(self._tools, items, closing)
        return items

    def _gather(self, items: list[Item], events: list[Event]) -> None:
        for item in items:
            if isinstance(item, Piece):
                self._text.add(item)
            else:
                self._text.flush(events)
                events.append(item)


class _Gathered:
    """Visible text between two events, with its tokens and log-probabilities."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._tokens = 0

    def add(self, piece: Piece) -> None:
        self._tokens += len(piece.token_ids)
        if piece.is_special:
            self._logprobs += [msgspec.structs.replace(logprob, data=b"") for logprob in piece.logprobs]
            return
        self._logprobs += piece.logprobs
        if piece.text:
            self._texts.append(piece.text)

    def flush(self, events: list[Event], closing: bool = False) -> None:
        """Without text there is no event, unless this is the end and tokens would be lost."""
        if self._texts or (closing and self._tokens):
            events.append(TextDelta("".join(self._texts), tuple(self._logprobs), self._tokens))
            self._texts.clear()
            self._logprobs.clear()
            self._tokens = 0


def _through(parser: Parser, items: list[Item], closing: bool) -> list[Item]:
    passed: list[Item] = []
    for item in items:
        if isinstance(item, Piece):
            passed += parser.feed([item])
        else:
            passed.append(item)
    if closing:
        passed += parser.finish()
    return passed


def _until_stop(stops: StopMatcher, items: list[Item], closing: bool) -> list[Item]:
    passed: list[Item] = []
    for item in items:
        if stops.matched is not None:
            return passed
        if isinstance(item, Piece):
            passed += stops.feed([item])
        else:
            passed.append(item)
    if closing:
        passed += stops.finish()
    return passed
