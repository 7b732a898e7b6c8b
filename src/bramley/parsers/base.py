"""The seam for reasoning and tool call formats.

A parser stands in a chain: it takes the pieces it claims out of the stream as events and passes every other piece on,
in order. It is incremental and does no I/O; any split of the same text gives the same result.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from bramley.domain.events import Event, Piece

Item = Event | Piece


class Parser(Protocol):
    """One per sequence, used from one thread at a time. Malformed text is text: nothing raises."""

    def feed(self, pieces: Sequence[Piece]) -> list[Item]:
        """What these pieces settle. Text that may yet start a marker is held back, with its tokens."""
        ...

    def finish(self) -> list[Item]:
        """The answer is over: everything held comes out, and what is open is closed."""
        ...


class Family(Protocol):
    """A module of ``parsers.tools`` or ``parsers.reasoning``: one format of one family of models."""

    NAME: str
    ALIASES: tuple[str, ...]

    def matches(self, template: str, vocabulary: Mapping[str, int]) -> bool:
        """Whether a model with this chat template and these tokens writes this format."""
        ...

    def create(self) -> Parser: ...


def cut(piece: Piece, at: int) -> tuple[Piece, Piece]:
    """Split a piece before character ``at`` (0 < at < len). Tokens go with the head, where their text begins."""
    head = Piece(piece.text[:at], piece.token_ids, piece.is_special, piece.logprobs)
    return head, Piece(piece.text[at:], (), piece.is_special)
