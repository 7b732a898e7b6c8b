"""A reasoning parser for tests of the seam: ``<think>`` at the start of the answer, ``</think>`` after it."""

from collections.abc import Sequence

from bramley.domain.events import Piece, ReasoningDelta
from bramley.parsers.base import Item

OPEN, CLOSE = "<think>", "</think>"


class ThinkParser:
    def __init__(self) -> None:
        self._marker = OPEN
        self._held: list[Piece] = []
        self._done = False

    def feed(self, pieces: Sequence[Piece]) -> list[Item]:
        items: list[Item] = []
        for piece in pieces:
            if self._done:
                items.append(piece)
                continue
            self._held.append(piece)
            text = "".join(held.text for held in self._held)
            if self._marker is OPEN and not text.startswith(OPEN):
                if not OPEN.startswith(text):
                    items += self._let_go()
                continue
            if self._marker is OPEN:
                text, self._marker = text.removeprefix(OPEN), CLOSE
            items += self._think(text)
        return items

    def finish(self) -> list[Item]:
        if self._marker is OPEN or self._done:
            return self._let_go()
        text = "".join(held.text for held in self._held)
        return [ReasoningDelta(text)] if text else []

    def _let_go(self) -> list[Item]:
        self._done, held, self._held = True, self._held, []
        return [*held]

    def _think(self, text: str) -> list[Item]:
        hidden, marker, rest = text.partition(CLOSE)
        if marker:
            self._held, self._done = [], True
            return [*([ReasoningDelta(hidden)] if hidden else []), *([Piece(rest)] if rest else [])]
        keep = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
        self._held = [Piece(text[len(text) - keep :])] if keep else []
        hidden = text[: len(text) - keep]
        return [ReasoningDelta(hidden)] if hidden else []
