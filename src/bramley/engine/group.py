"""Rows that decode in one forward pass: their caches, who joins, who leaves, when they are copied together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from bramley.engine import caches
from bramley.engine.caches import LayerCaches
from bramley.engine.model import TextModel
from bramley.engine.sequence import Sequence

# Rows of sequences that left are computed along until more than this share is dead: dropping them copies the batch.
_DEAD_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest token of each sequence: ``tokens`` int32 [sequences], evaluated or not."""

    tokens: mx.array
    sequences: tuple[Sequence, ...]

    def of(self, slots: list[Sequence | None]) -> mx.array:
        """Token ids [slots, 1]; a dead slot gets any token. Raises KeyError for a sequence that is not here."""
        if tuple(slots) == self.sequences:
            return self.tokens[:, None]
        places = {sequence: place for place, sequence in enumerate(self.sequences)}
        chosen = [0 if sequence is None else places[sequence] for sequence in slots]
        return self.tokens[mx.array(chosen, dtype=mx.int32)][:, None]


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence on its way into a group: ``length`` tokens are in its own caches."""

    sequence: Sequence
    length: int
    layers: LayerCaches


class Group:
    """At least one row. One row alone has its own caches, without padding and without masks; more share a batch's.

    A slot whose sequence left is None: its row is computed along until ``compact``.
    """

    def __init__(self, sequences: list[Sequence], lengths: list[int], layers: LayerCaches) -> None:
        """``layers`` are a batch's, in the order of the sequences, or the own ones of a single sequence."""
        self._slots: list[Sequence | None] = [*sequences]
        self._lengths = lengths
        self._layers = layers

    @classmethod
    def of(cls, rows: list[Row]) -> "Group":
        layers = rows[0].layers if len(rows) == 1 else caches.merge([row.layers for row in rows])
        return cls([row.sequence for row in rows], [row.length for row in rows], layers)

    @property
    def sequences(self) -> list[Sequence]:
        """Those that are alive."""
        return [sequence for sequence in self._slots if sequence is not None]

    @property
    def lengths(self) -> list[int]:
        """Tokens in the caches of the living."""
        return [length for sequence, length in zip(self._slots, self._lengths, strict=True) if sequence is not None]

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def is_sparse(self) -> bool:
        """Whether enough rows are dead to be worth a copy."""
        dead = self._slots.count(None)
        return dead > _DEAD_SHARE * len(self._slots)

    def arrays(self) -> list[mx.array]:
        return caches.arrays(self._layers)

    def leave(self, sequence: Sequence) -> bool:
        """Mark a sequence's row as dead; False when it has none here."""
        if sequence not in self._slots:
            return False
        self._slots[self._slots.index(sequence)] = None
        return True

    def decode(self, model: TextModel, newest: Newest, wanted: set[Sequence]) -> tuple[list[Sequence], mx.array | None]:
        """One more token for every row: the wanted sequences and their logits [sequences, vocabulary], lazy."""
        places = [place for place, sequence in enumerate(self._slots) if sequence in wanted]
        if not places:
            return [], None
        logits = model.logits(newest.of(self._slots), self._layers)
        self._lengths = [length + 1 for length in self._lengths]
        if len(places) < len(self._slots):
            logits = logits[mx.array(places, dtype=mx.int32)]
        return [sequence for sequence in self._slots if sequence in wanted], logits

    def join(self, rows: list[Row]) -> None:
        """Take rows in, and drop the dead on that occasion."""
        self._absorb(Group.of(rows))

    def unite(self, other: "Group") -> None:
        """Take over all rows of another group, which is used up."""
        other.compact()
        self._absorb(other)

    def split(self, sequences: Iterable[Sequence]) -> "Group":
        """Give some of the rows to a group of their own; at least one must stay."""
        leaving = set(sequences)
        places = [place for place, sequence in enumerate(self._slots) if sequence in leaving]
        rows = [self._extract(place) for place in places]
        for sequence in leaving:
            self.leave(sequence)
        self.compact()
        return Group.of(rows)

    def compact(self) -> None:
        """Drop the dead rows; a row that is left alone gets caches of its own. At least one must be alive."""
        alive = [place for place, sequence in enumerate(self._slots) if sequence is not None]
        if len(alive) == len(self._slots):
            return
        if len(alive) == 1:
            self._layers = caches.extract(self._layers, alive[0])
        else:
            caches.keep(self._layers, alive)
        self._slots = [self._slots[place] for place in alive]
        self._lengths = [self._lengths[place] for place in alive]

    def _absorb(self, other: "Group") -> None:
        self.compact()
        layers = self._batched()
        caches.extend(layers, other._batched())
        self._layers = layers
        self._slots += other._slots
        self._lengths += other._lengths

    def _batched(self) -> LayerCaches:
        return caches.merge([self._layers]) if len(self._slots) == 1 else self._layers

    def _extract(self, place: int) -> Row:
        sequence = self._slots[place]
        if sequence is None:
            raise ValueError("a dead row has nothing to give")
        return Row(sequence, self._lengths[place], caches.extract(self._layers, place))
