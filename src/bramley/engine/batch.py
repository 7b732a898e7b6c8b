"""The running sequences' caches: prompts being read, rows that decode together in as few passes as pay.

Nothing is evaluated here but what mlx-lm's caches must know: the engine says when the device starts.
"""

from collections.abc import Collection
from collections.abc import Sequence as Rows
from typing import Final

import mlx.core as mx

from bramley.domain.wire import Logprobs
from bramley.engine import caches
from bramley.engine.caches import LayerCaches
from bramley.engine.group import Group, Newest, Row
from bramley.engine.model import TextModel
from bramley.engine.sampling import MAX_TOP_LOGPROBS, read_scores, score
from bramley.engine.sequence import Sequence

# A group is parted when more of it is padding, and two become one when less of both together would be. The distance
# between the two keeps rows from being copied to and fro.
_SPLIT_SHARE: Final = 0.3
_UNITE_SHARE: Final = 0.2
_LENGTH_RATIO: Final = 4
# A pass of its own reads all weights again. Padding that costs less memory traffic than a quarter of that is cheaper.
_PASS_WORTH: Final = 0.25
_REVIEW_EVERY: Final = 64
# Whole prompts are read in one pass when padding is at most this share of it, or this many tokens for each pass saved.
_WAVE_SHARE: Final = 0.25
_WAVE_TOKENS: Final = 16


class Batch:
    """Everything of the running sequences that is on the device.

    ``together`` False: each sequence decodes in passes of its own, for models whose rows cannot share one.
    """

    def __init__(self, model: TextModel, *, together: bool = True) -> None:
        self._model = model
        self._together = together and model.can_merge
        per_token = model.cost.per_token
        self._cheap_padding = _PASS_WORTH * model.weight_bytes / per_token if per_token else float("inf")
        self._reading: dict[Sequence, LayerCaches] = {}
        self._scores: dict[Sequence, list[tuple[mx.array, ...]]] = {}
        self._joining: list[Row] = []
        self._groups: list[Group] = []
        self._until_review = _REVIEW_EVERY

    def __len__(self) -> int:
        """Sequences that have caches here."""
        return len(self._reading) + len(self._joining) + sum(len(group.sequences) for group in self._groups)

    @property
    def slots(self) -> int:
        """Rows computed in a decode step, dead ones included."""
        return sum(group.slots for group in self._groups)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The lengths of the rows that share a pass."""
        return tuple(tuple(group.lengths) for group in self._groups)

    def arrays(self) -> list[mx.array]:
        """All that is held here."""
        joining = [array for row in self._joining for array in caches.arrays(row.layers)]
        return [*self.prompts(), *joining, *(array for group in self._groups for array in group.arrays())]

    def prompts(self) -> list[mx.array]:
        """The caches of prompts that are read in part, and the scores of prompts: no logits depend on them, so they
        must be started as such.
        """
        scores = [array for found in self._scores.values() for score in found for array in score]
        return [*scores, *(array for layers in self._reading.values() for array in caches.arrays(layers))]

    def leave(self, sequence: Sequence) -> None:
        """Drop everything of a sequence; one that never read anything has nothing."""
        self._reading.pop(sequence, None)
        self._scores.pop(sequence, None)
        self._joining = [row for row in self._joining if row.sequence is not sequence]
        for group in self._groups:
            group.leave(sequence)
        self._groups = [group for group in self._groups if group.sequences]

    def clear(self) -> None:
        self._reading.clear()
        self._scores.clear()
        self._joining.clear()
        self._groups.clear()

    def read(self, sequence: Sequence, count: int) -> mx.array | None:
        """Read the next ``count`` tokens of a prompt.

        When it ends with them, the logits [1, vocabulary] after it; the sequence decodes from then on.
        """
        layers = self._reading.setdefault(sequence, [])
        if not layers:
            layers.extend(self._model.make_caches())
        tokens = mx.array([sequence.read_on(count)])
        logits: mx.array | None = None
        if sequence.scores_prompt:
            logits = self._score(sequence, count, tokens, layers)
        elif sequence.is_prefilled:
            logits = self._model.logits(tokens, layers)
        else:
            self._model.read(tokens, layers)
        if not sequence.is_prefilled:
            return None
        del self._reading[sequence]
        self._joining.append(Row(sequence, sequence.prefilled, layers))
        return logits

    def take_scores(self, sequence: Sequence) -> tuple[Logprobs, ...] | None:
        """The log-probabilities of its prompt's tokens from the second on, once; None for one that did not ask."""
        scores = self._scores.pop(sequence, None)
        return None if scores is None else tuple(row for score in scores for row in read_scores(score))

    def _score(self, sequence: Sequence, count: int, tokens: mx.array, layers: LayerCaches) -> mx.array:
        """Read the next ``count`` tokens, note what the model thought of them, give the last logits."""
        scores = self._scores.setdefault(sequence, [])
        top = min(sequence.sampling.prompt_logprobs or 0, MAX_TOP_LOGPROBS)
        start = sequence.prefilled - count + 1
        parts = self._model.logit_slices(tokens, layers)
        for part in parts:
            follow = sequence.prompt[start : start + part.shape[1]]
            if follow:
                scores.append(score(part[0, : len(follow)], mx.array(follow), top))
            start += part.shape[1]
        return parts[-1][:, -1]

    def waves(self, shares: Rows[tuple[Sequence, int]]) -> list[list[tuple[Sequence, int]]]:
        """Shares of prompts in sets that can be read in one pass each: whole prompts of about the same length."""
        waves: list[list[tuple[Sequence, int]]] = []
        open_wave: list[int] = []
        for sequence, count in sorted(shares, key=lambda share: -share[1]):
            is_whole = sequence.prefilled == 0 and count == sequence.prompt_left and not sequence.scores_prompt
            is_whole = is_whole and self._together
            if is_whole and open_wave and _fits_wave([*open_wave, count]):
                waves[-1].append((sequence, count))
                open_wave.append(count)
            else:
                waves.append([(sequence, count)])
                open_wave = [count] if is_whole else []
        return waves

    def read_whole(self, sequences: list[Sequence]) -> mx.array:
        """Read several prompts from start to end in one pass: logits [sequences, vocabulary] after each."""
        lengths = [sequence.prompt_left for sequence in sequences]
        padding = [max(lengths) - length for length in lengths]
        layers = caches.merge_empty([self._model.make_caches() for _ in sequences], padding)
        padded = [[0] * pad + [*one.read_on(one.prompt_left)] for one, pad in zip(sequences, padding, strict=True)]
        logits = self._model.logits(mx.array(padded), layers)
        caches.end_padding(layers)
        self._groups.append(Group(sequences, lengths, layers))
        self._until_review = 0
        return logits

    def decode(self, wanted: Collection[Sequence], newest: Newest) -> tuple[list[Sequence], mx.array]:
        """One more token for each wanted sequence, at least one; they come in the order of their logits
        [sequences, vocabulary].
        """
        chosen = set(wanted)
        self._settle(chosen)
        sequences: list[Sequence] = []
        parts: list[mx.array] = []
        for group in self._groups:
            rows, logits = group.decode(self._model, newest, chosen)
            if logits is not None:
                sequences += rows
                parts.append(logits)
        return sequences, parts[0] if len(parts) == 1 else mx.concatenate(parts)

    def _settle(self, wanted: set[Sequence]) -> None:
        """Place who joins; drop dead rows; part and unite groups. Nothing is copied when none of that is due."""
        for group in self._groups:
            if group.is_sparse:
                group.compact()
        joining = [row for row in self._joining if row.sequence in wanted]
        # the others end with the token in flight
        self._joining = [row for row in self._joining if row.sequence not in wanted]
        if not self._together:
            self._groups += [Group.of([row]) for row in joining]
            return
        if joining:
            self._place(joining)
        self._until_review -= 1
        if joining or self._until_review <= 0:
            self._until_review = _REVIEW_EVERY
            self._review()

    def _place(self, joining: list[Row]) -> None:
        """Every row goes where it makes the least padding, all rows of a group in one copy."""
        incoming: dict[Group | None, list[Row]] = {}
        for row in sorted(joining, key=lambda row: -row.length):
            homes: list[tuple[bool, int, int, Group | None]] = []
            for place, group in enumerate((*self._groups, None)):
                lengths = [*(group.lengths if group else ()), *(other.length for other in incoming.get(group, ()))]
                if self._is_fine([*lengths, row.length], _SPLIT_SHARE):
                    # a new group is the last resort: it costs a pass
                    homes.append((not lengths, _padding([*lengths, row.length]), place, group))
            incoming.setdefault(min(homes, key=lambda home: home[:3])[3] if homes else None, []).append(row)
        for group, rows in incoming.items():
            if group is not None:
                group.join(rows)
            else:
                self._groups += [Group.of(part) for part in self._parts(rows)]

    def _parts(self, rows: list[Row]) -> list[list[Row]]:
        """Rows as one group, or by length where that would be too much padding."""
        lengths = {row.sequence: row.length for row in rows}
        if self._is_fine(list(lengths.values()), _SPLIT_SHARE):
            return [rows]
        parts = _by_length(lengths)
        return [[row for row in rows if row.sequence in part] for part in parts]

    def _review(self) -> None:
        """Part groups with too much padding, then unite those that would have little."""
        for group in tuple(self._groups):
            if not self._is_fine(group.lengths, _SPLIT_SHARE):
                parts = _by_length(dict(zip(group.sequences, group.lengths, strict=True)))
                self._groups += [group.split(part) for part in parts[1:]]
        settled: list[Group] = []
        for group in sorted(self._groups, key=lambda group: max(group.lengths)):
            if settled and self._is_fine(settled[-1].lengths + group.lengths, _UNITE_SHARE):
                settled[-1].unite(group)
            else:
                settled.append(group)
        self._groups = settled

    def _is_fine(self, lengths: list[int], share: float) -> bool:
        """Whether rows of these lengths may decode together."""
        padding = _padding(lengths)
        allowed = max(share * len(lengths) * max(lengths), self._cheap_padding * share / _SPLIT_SHARE)
        return padding <= allowed


def _fits_wave(lengths: list[int]) -> bool:
    return _padding(lengths) <= max(_WAVE_SHARE * sum(lengths), _WAVE_TOKENS * (len(lengths) - 1))


def _padding(lengths: list[int]) -> int:
    return len(lengths) * max(lengths) - sum(lengths)


def _by_length(lengths: dict[Sequence, int]) -> list[set[Sequence]]:
    """Sets of sequences whose longest is at most ``_LENGTH_RATIO`` times as long as the shortest, longest set first."""
    parts: list[set[Sequence]] = []
    longest = 0
    for sequence, length in sorted(lengths.items(), key=lambda item: -item[1]):
        if not parts or length * _LENGTH_RATIO < longest:
            longest = length
            parts.append(set())
        parts[-1].add(sequence)
    return parts
