"""Token ids in, complete UTF-8 text out.

A token goes out with the first text it completes: bytes of an unfinished character wait, and with them the ids and
log-probabilities of the tokens that brought nothing else. The texts joined are what ``bytes.decode(errors="replace")``
makes of all the bytes, however the ids are split over calls.
"""

from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Protocol

from bramley.domain.events import Piece, TokenLogprob
from bramley.domain.wire import Logprobs
from bramley.service.vocabulary import Token, Vocabulary


class Detokenizer(Protocol):
    """One per sequence, used from one thread at a time. Nothing raises."""

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> list[Piece]:
        """Text completed by these tokens. ``logprobs`` is empty or one entry a token."""
        ...

    def finish(self) -> list[Piece]:
        """What is still held: an unfinished character comes out as one U+FFFD."""
        ...


class ByteDetokenizer:
    """Works on the exact bytes of each token."""

    def __init__(self, vocabulary: Vocabulary, continues: bool = False) -> None:
        """``continues``: the text goes on from earlier text, so a leading space of its first token is meant."""
        self._vocabulary = vocabulary
        self._at_start = not continues
        self._bytes = b""
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> list[Piece]:
        pieces: list[Piece] = []
        for position, token_id in enumerate(token_ids):
            token = self._vocabulary[token_id]
            own = (self._logprob(token_id, logprobs[position]),) if logprobs else ()
            if token.is_special:
                self._flush(pieces)
                pieces.append(Piece(token.text or "", (token_id,), True, own))
            elif token.text is None or self._bytes or self._ids or self._at_start:
                self._add(token_id, token, own, pieces)
            else:
                pieces.append(Piece(token.text, (token_id,), False, own))
        return pieces

    def finish(self) -> list[Piece]:
        pieces: list[Piece] = []
        self._flush(pieces)
        return pieces

    def _add(self, token_id: int, token: Token, own: tuple[TokenLogprob, ...], pieces: list[Piece]) -> None:
        data = self._bytes + (token.first if self._at_start else token.data)
        self._at_start = False
        self._ids.append(token_id)
        self._logprobs += own
        text, used = utf_8_decode(data, "replace", False)
        self._bytes = data[used:]
        if text or not self._bytes:
            self._emit(text, pieces)

    def _flush(self, pieces: list[Piece]) -> None:
        if self._bytes or self._ids:
            text = self._bytes.decode(errors="replace")
            self._bytes = b""
            self._emit(text, pieces)

    def _emit(self, text: str, pieces: list[Piece]) -> None:
        pieces.append(Piece(text, tuple(self._ids), False, tuple(self._logprobs)))
        self._ids.clear()
        self._logprobs.clear()

    def _logprob(self, token_id: int, row: Logprobs) -> TokenLogprob:
        return _logprob(token_id, row, self._first_data if self._at_start else self._data)

    def _data(self, token_id: int) -> bytes:
        return self._vocabulary[token_id].data

    def _first_data(self, token_id: int) -> bytes:
        return self._vocabulary[token_id].first


class WindowDetokenizer:
    """For decoders that only work on whole lists: decodes a window of recent tokens and takes what is new.

    ``decode`` turns ids into text; ``specials`` are ids with their texts. A character counts as unfinished while the
    window ends in U+FFFD, for at most ``MAX_HELD`` tokens.
    """

    MAX_HELD = 8

    def __init__(self, decode: Callable[[Sequence[int]], str], specials: dict[int, str]) -> None:
        self._decode = decode
        self._specials = specials
        self._context: list[int] = []
        self._held: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Logprobs] = ()) -> list[Piece]:
        pieces: list[Piece] = []
        for position, token_id in enumerate(token_ids):
            own = [_logprob(token_id, logprobs[position], self._data)] if logprobs else []
            if (special := self._specials.get(token_id)) is not None:
                pieces += self.finish()
                pieces.append(Piece(special, (token_id,), True, tuple(own)))
                continue
            self._held.append(token_id)
            self._logprobs += own
            text = self._new_text()
            if not text.endswith("\ufffd") or len(self._held) >= self.MAX_HELD:
                pieces.append(self._take(text))
        return pieces

    def finish(self) -> list[Piece]:
        return [self._take(self._new_text())] if self._held else []

    def _new_text(self) -> str:
        return self._decode(self._context + self._held)[len(self._decode(self._context)) :]

    def _take(self, text: str) -> Piece:
        piece = Piece(text, tuple(self._held), False, tuple(self._logprobs))
        self._context, self._held, self._logprobs = self._held, [], []
        return piece

    def _data(self, token_id: int) -> bytes:
        return (self._specials.get(token_id) or self._decode([token_id])).encode()


def _logprob(token_id: int, row: Logprobs, data: Callable[[int], bytes]) -> TokenLogprob:
    best = zip(row.top_ids, row.top, strict=True)
    top = tuple(TokenLogprob(index, logprob, data(index)) for index, logprob in best)
    return TokenLogprob(token_id, row.chosen, data(token_id), top)
