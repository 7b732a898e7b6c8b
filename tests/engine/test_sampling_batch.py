"""Rows beside each other and step after step: no row depends on its neighbours, and nothing waits for the device."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from bramley.domain.sampling import Sampling
from bramley.engine.sampling import RowState, SamplingBatch, SamplingRow, draw, sample

# More than a thousand, so that rows are halved before they are sorted; no multiple of any block.
VOCABULARY = 2500
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.01},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 300},
    {"min_p": 0.02},
    {"typical_p": 0.8},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "top_p": 0.95},
    {"temperature": 0.0, "repetition_penalty": 1.5, "repetition_context": 4},
    {"repetition_penalty": 1.2, "top_p": 0.9},
    {"temperature": 0.5, "presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"temperature": 0.0, "frequency_penalty": 1.0, "logprobs": 2},
    {"logit_bias": {5: 3.0, 7: -100.0}, "top_k": 100},
    {"min_tokens": 6, "logprobs": 3},
)


def logits_of(count: int, seed: int = 0) -> mx.array:
    """Rows with a head and a long tail, as a model's."""
    return mx.random.normal((count, VOCABULARY), key=mx.random.key(seed)) * 3


def rows_of(count: int, rng: random.Random) -> list[SamplingRow]:
    return [
        SamplingRow(
            Sampling(seed=rng.randrange(2**40), **SETTINGS[index % len(SETTINGS)]),
            position=rng.randrange(10),
            prompt=[rng.randrange(VOCABULARY) for _ in range(5)],
            generated=[rng.randrange(VOCABULARY) for _ in range(rng.randrange(5))],
            end_ids={1, 2, 3},
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_the_same_row_gives_the_same_draw_in_any_batch_and_place(dtype: mx.Dtype) -> None:
    rng = random.Random(5)
    count = 2 * len(SETTINGS) + 3
    rows, logits = rows_of(count, rng), logits_of(count).astype(dtype)
    alone = [draw(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    for size in (2, 3, 8, 13, 32, 33):
        for _ in range(3):
            places = rng.sample(range(count), size)
            together = draw(logits[mx.array(places)], [rows[place] for place in places])
            assert together == [alone[place] for place in places]


def test_the_same_row_gives_the_same_draw_among_copies_of_itself() -> None:
    logits = logits_of(1)
    for row in rows_of(len(SETTINGS), random.Random(6)):
        (alone,) = draw(logits, [row])
        for size in (2, 7, 33):
            assert draw(mx.broadcast_to(logits, (size, VOCABULARY)), [row] * size) == [alone] * size


def test_a_seeds_tokens_do_not_change_while_others_sample_beside_it() -> None:
    rng = random.Random(7)
    logits = logits_of(4)
    for position in range(10):
        tested = SamplingRow(Sampling(seed=42), position)
        others = [SamplingRow(Sampling(seed=rng.randrange(2**63)), position) for _ in range(3)]
        (alone,) = draw(logits[:1], [tested])
        assert draw(logits, [tested, *others])[0] == alone


def test_nothing_is_evaluated_before_it_is_read() -> None:
    states = [RowState(row, VOCABULARY) for row in rows_of(len(SETTINGS), random.Random(8))]

    def steps(logits: mx.array) -> list[mx.array]:
        batch = SamplingBatch(states)
        return [array for _ in range(3) for array in batch.sample(logits).arrays()]

    # while a function is traced MLX refuses to evaluate
    mx.compile(steps)(logits_of(len(SETTINGS)))


def test_running_ahead_gives_what_known_tokens_give() -> None:
    rng = random.Random(9)
    count, steps = len(SETTINGS), 8
    rows = [replace(row, position=len(row.generated)) for row in rows_of(count, rng)]
    logits = [logits_of(count, seed=step) for step in range(steps)]
    batch = SamplingBatch([RowState(row, VOCABULARY) for row in rows])
    ahead = [batch.sample(logits[step]) for step in range(steps)]
    for step in range(steps):
        known = draw(logits[step], rows)
        assert ahead[step].read() == known
        rows = [grown(row, drawn.token) for row, drawn in zip(rows, known, strict=True)]


def test_rows_go_on_when_others_join_and_leave() -> None:
    rng = random.Random(10)
    rows = {number: replace(row, position=len(row.generated)) for number, row in enumerate(rows_of(30, rng))}
    states: dict[int, RowState] = {}
    for step in range(12):
        present = rng.sample(sorted(rows), rng.randint(1, 12))
        # a row that is away is asked again where it stopped, from its state or from what the host knows
        states = {number: states.get(number) or RowState(rows[number], VOCABULARY) for number in present}
        logits = logits_of(len(present), seed=step)
        drawn = SamplingBatch([states[number] for number in present]).sample(logits).read()
        assert drawn == draw(logits, [rows[number] for number in present])
        for number, one in zip(present, drawn, strict=True):
            rows[number] = grown(rows[number], one.token)


def test_every_array_that_is_read_is_listed() -> None:
    plain = sample(logits_of(2), [SamplingRow(Sampling(), 0)] * 2)
    assert [array.shape for array in plain.arrays()] == [(2,)]
    assert plain.tokens.dtype == mx.int32
    asked: Sequence[SamplingRow] = [SamplingRow(Sampling(logprobs=count), 0) for count in (4, 2)]
    assert [array.shape for array in sample(logits_of(2), asked).arrays()] == [(2,), (2,), (2, 4), (2, 4)]


def grown(row: SamplingRow, token: int) -> SamplingRow:
    return replace(row, position=row.position + 1, generated=[*row.generated, token])
