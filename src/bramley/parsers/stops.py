"""Finds stop strings in a stream of pieces, whatever tokens their letters come in.

The first to be complete wins; of several complete at the same character, the longest, which begins first. A stop
string is thus never waited for: generation ends with the token that completes one. Matching is Knuth-Morris-Pratt,
one state a string, so that cost is linear in the text and what is held back is the longest possible beginning.
"""

from collections import deque
from collections.abc import Sequence

from bramley.domain.events import Piece
from bramley.parsers.base import cut


class _Pattern:
    """One stop string and how much of it the text so far ends in."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.state = 0
        self._borders = _borders(text)

    def step(self, character: str) -> bool:
        """True when this character completes the string."""
        while self.state and self.text[self.state] != character:
            self.state = self._borders[self.state - 1]
        self.state += self.text[self.state] == character
        return self.state == len(self.text)


class StopMatcher:
    """Passes on the text before the first match and nothing after it.

    A control token's text is not part of the answer: it takes no part in a match and does not break one, unless it
    equals a stop string as a whole, which then ends the answer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` are not empty strings."""
        self.matched: str | None = None
        self._stops = frozenset(stops)
        self._patterns = [_Pattern(text) for text in self._stops]
        self._initials = frozenset(text[0] for text in self._stops)
        self._queue: deque[Piece] = deque()
        self._held = 0

    def feed(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Pieces that cannot be part of a match. The piece that completes one is the last that is looked at."""
        released: list[Piece] = []
        for piece in pieces:
            if self.matched is not None:
                break
            if not self._queue and not piece.is_special and self._initials.isdisjoint(piece.text):
                released.append(piece)
            else:
                released += self._scan(piece)
        return released

    def finish(self) -> list[Piece]:
        """A beginning of a stop string that never became one is text."""
        return [] if self.matched is not None else self._release(self._held)

    def _scan(self, piece: Piece) -> list[Piece]:
        if piece.is_special:
            if piece.text in self._stops:
                self.matched = piece.text
                return self._release(self._held)
            self._queue.append(piece)
            return self._release(0)
        self._queue.append(piece)
        for position, character in enumerate(piece.text):
            complete = [pattern.text for pattern in self._patterns if pattern.step(character)]
            if complete:
                self.matched = max(complete, key=len)
                return self._release(self._held + position + 1 - len(self.matched))
        total = self._held + len(piece.text)
        return self._release(total - max(pattern.state for pattern in self._patterns), total)

    def _release(self, count: int, total: int | None = None) -> list[Piece]:
        """Take ``count`` characters from the queue, which holds ``total``, with the empty pieces between them."""
        self._held = (self._held if total is None else total) - count
        released: list[Piece] = []
        while self._queue:
            width = 0 if self._queue[0].is_special else len(self._queue[0].text)
            if width > count:
                if count:
                    head, self._queue[0] = cut(self._queue[0], count)
                    released.append(head)
                break
            released.append(self._queue.popleft())
            count -= width
        return released


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders
