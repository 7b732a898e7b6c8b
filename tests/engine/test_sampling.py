"""The draw: its distribution, its filters, and that it depends on seed, position and logits alone."""

import math
from collections import Counter
from typing import Any

import mlx.core as mx
import pytest

from bramley.domain.sampling import Sampling
from bramley.engine.sampling import SamplingRow, draw, noise_key

PROBABILITIES = (0.5, 0.3, 0.15, 0.04, 0.01)
DRAWS = 4000


def logits_of(probabilities: tuple[float, ...] = PROBABILITIES) -> mx.array:
    return mx.log(mx.array(probabilities))


def row(position: int = 0, **sampling: Any) -> SamplingRow:
    return SamplingRow(Sampling(**{"seed": 1, **sampling}), position)


def frequencies(count: int = DRAWS, **sampling: Any) -> dict[int, float]:
    """How often each token comes over many positions of one seed."""
    logits = mx.broadcast_to(logits_of(), (count, len(PROBABILITIES)))
    counts = Counter(drawn.token for drawn in draw(logits, [row(position, **sampling) for position in range(count)]))
    return {token: seen / count for token, seen in sorted(counts.items())}


def kept(probabilities: tuple[float, ...], **sampling: Any) -> set[int]:
    """The tokens that come at all in many draws at a temperature that makes them nearly equal after the filter."""
    logits = mx.broadcast_to(logits_of(probabilities), (500, len(probabilities)))
    return {drawn.token for drawn in draw(logits, [row(position, **sampling) for position in range(500)])}


def chi_square(seen: dict[int, float], wanted: dict[int, float]) -> float:
    return sum(DRAWS * (seen.get(token, 0.0) - p) ** 2 / p for token, p in wanted.items())


def softmax(temperature: float) -> dict[int, float]:
    powers = [p ** (1 / temperature) for p in PROBABILITIES]
    return {token: power / sum(powers) for token, power in enumerate(powers)}


# 99.9 % quantiles of chi-square with 4, 2 and 1 degrees of freedom.
@pytest.mark.parametrize(
    ("sampling", "wanted", "limit"),
    [
        ({}, softmax(1.0), 18.5),
        ({"temperature": 0.5}, softmax(0.5), 18.5),
        ({"temperature": 2.0}, softmax(2.0), 18.5),
        ({"top_k": 3}, {0: 0.5 / 0.95, 1: 0.3 / 0.95, 2: 0.15 / 0.95}, 13.8),
        ({"top_p": 0.8}, {0: 0.5 / 0.8, 1: 0.3 / 0.8}, 10.8),
        ({"min_p": 0.25}, {0: 0.5 / 0.95, 1: 0.3 / 0.95, 2: 0.15 / 0.95}, 13.8),
    ],
    ids=str,
)
def test_tokens_come_as_often_as_the_distribution_says(
    sampling: dict[str, Any], wanted: dict[int, float], limit: float
) -> None:
    seen = frequencies(**sampling)
    assert set(seen) <= set(wanted)
    assert chi_square(seen, wanted) < limit


def test_temperature_zero_and_nearly_zero_take_the_best_token() -> None:
    assert frequencies(100, temperature=0.0) == {0: 1.0}
    assert frequencies(100, temperature=1e-30) == {0: 1.0}
    assert frequencies(100, temperature=1e-4) == {0: 1.0}


@pytest.mark.parametrize(
    ("probabilities", "top_p", "tokens"),
    [
        ((0.5, 0.4, 0.1), 0.9, {0, 1}),
        ((0.5, 0.4, 0.1), 0.91, {0, 1, 2}),
        ((0.5, 0.4, 0.1), 0.5, {0}),
        ((0.5, 0.4, 0.1), 0.0, {0}),
        ((0.25, 0.25, 0.25, 0.25), 0.5, {0, 1}),
        ((0.1, 0.2, 0.2, 0.5), 0.7, {3, 1}),
        ((0.2, 0.2, 0.2, 0.2, 0.2), 1.0, {0, 1, 2, 3, 4}),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass_and_ties_go_to_the_lower_id(
    probabilities: tuple[float, ...], top_p: float, tokens: set[int]
) -> None:
    assert kept(probabilities, top_p=top_p) == tokens


def test_top_k_of_equal_tokens_keeps_exactly_k() -> None:
    assert kept((0.2, 0.2, 0.2, 0.2, 0.2), top_k=2) == {0, 1}
    assert kept((0.5, 0.5), top_k=100) == {0, 1}


def test_filters_apply_one_after_the_other() -> None:
    # Of what top_k leaves, 0.4 and 0.3 of 0.9, top_p 0.7 needs both; of all, 0.4 + 0.3 would be just enough too.
    assert kept((0.4, 0.3, 0.2, 0.1), top_k=3, top_p=0.44) == {0}
    assert kept((0.4, 0.3, 0.2, 0.1), top_k=3, top_p=0.45) == {0, 1}
    assert kept((0.4, 0.3, 0.2, 0.1), min_p=0.6, top_p=0.99) == {0, 1}


def test_the_same_row_gives_the_same_token_in_any_batch_and_place() -> None:
    mx.random.seed(3)
    others = mx.random.normal((33, 1000)) * 3
    settings = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 40, "min_p": 0.01},
    ]
    for number, sampling in enumerate(settings):
        tested = row(number, seed=123, **sampling)
        mine = mx.random.normal((1, 1000)) * 3
        (alone,) = draw(mine, [tested])
        for place in (0, 1, 17, 32):
            logits = mx.concatenate([others[:place], mine, others[place:32]])
            rows = [row(index, seed=index, **settings[index % 4]) for index in range(32)]
            rows.insert(place, tested)
            assert draw(logits, rows)[place] == alone


def test_draws_of_other_seeds_and_positions_are_independent() -> None:
    keys = {noise_key(seed, position) for seed in range(200) for position in range(200)}
    assert len(keys) == 200 * 200
    # Neighbours in seed and position agree no more often than chance: sum of squared probabilities.
    logits = mx.broadcast_to(logits_of(), (DRAWS, len(PROBABILITIES)))
    one = draw(logits, [row(position) for position in range(DRAWS)])
    for other_rows in ([row(position + 1) for position in range(DRAWS)], [row(p, seed=2) for p in range(DRAWS)]):
        same = sum(a.token == b.token for a, b in zip(one, draw(logits, other_rows), strict=True)) / DRAWS
        assert same == pytest.approx(sum(p * p for p in PROBABILITIES), abs=0.03)


def test_any_seed_a_client_may_send_is_accepted() -> None:
    for seed in (0, -1, 2**31, 2**63, -(2**63), 2**64 + 5, None):
        draw(logits_of()[None], [row(seed=seed)])


def test_the_draw_does_not_touch_mlxs_global_random_state() -> None:
    mx.random.seed(1)
    wanted = mx.random.normal((3,)).tolist()
    mx.random.seed(1)
    draw(logits_of()[None], [row()])
    assert mx.random.normal((3,)).tolist() == wanted


def test_penalties_and_bias_move_the_logits_as_their_formulas_say() -> None:
    logits = mx.array([[2.0, -1.0, 1.0, 0.5]])
    sampling = Sampling(
        temperature=0.0,
        repetition_penalty=2.0,
        repetition_context=3,
        presence_penalty=0.25,
        frequency_penalty=0.125,
        logit_bias={3: 1.5, 99: 5.0},
        logprobs=0,
    )
    # Of the last three tokens, 0 halves its 2.0 and 1 doubles its -1.0; 2 has left the window. Bias makes 3 the best.
    (drawn,) = draw(logits, [SamplingRow(sampling, 3, prompt=(2, 0), generated=(1, 1))])
    assert drawn.token == 3
    assert drawn.logprobs is not None
    assert drawn.logprobs.chosen == pytest.approx(0.5 - math.log(sum(math.exp(x) for x in (2.0, -1.0, 1.0, 0.5))))


@pytest.mark.parametrize(
    ("sampling", "generated", "token"),
    [
        ({"presence_penalty": 0.9}, (0, 0, 0), 0),
        ({"presence_penalty": 1.1}, (0,), 1),
        ({"frequency_penalty": 0.4}, (0, 0), 0),
        ({"frequency_penalty": 0.4}, (0, 0, 0), 1),
        ({"frequency_penalty": -0.6}, (1, 1), 1),
        ({"repetition_penalty": 1.9}, (0,), 0),
        ({"repetition_penalty": 2.1}, (0,), 1),
        ({"repetition_penalty": 2.1, "repetition_context": 1}, (0, 2), 0),
        ({"logit_bias": {0: -100.0}}, (), 1),
        ({"logit_bias": {2: 100.0}}, (), 2),
    ],
)
def test_each_penalty_turns_the_choice_at_its_own_point(
    sampling: dict[str, Any], generated: tuple[int, ...], token: int
) -> None:
    logits = mx.array([[2.0, 1.0, 0.0]])
    (drawn,) = draw(logits, [SamplingRow(Sampling(temperature=0.0, **sampling), 0, generated=generated)])
    assert drawn.token == token


def test_presence_and_frequency_look_at_the_answer_only_and_repetition_at_the_prompt_too() -> None:
    logits = mx.array([[2.0, 1.0]])
    for sampling, token in (
        (Sampling(temperature=0.0, presence_penalty=5.0, frequency_penalty=5.0), 0),
        (Sampling(temperature=0.0, repetition_penalty=5.0), 1),
    ):
        (drawn,) = draw(logits, [SamplingRow(sampling, 0, prompt=(0,))])
        assert drawn.token == token


def test_banned_tokens_are_never_drawn() -> None:
    logits = mx.broadcast_to(logits_of(), (200, len(PROBABILITIES)))
    rows = [SamplingRow(Sampling(seed=1), position, banned={0, 1}) for position in range(200)]
    assert {drawn.token for drawn in draw(logits, rows)} <= {2, 3, 4}


def test_logprobs_are_the_models_own_before_temperature_and_filters() -> None:
    (drawn,) = draw(logits_of()[None], [row(temperature=0.3, top_k=1, logprobs=3)])
    assert drawn.logprobs is not None
    assert drawn.logprobs.chosen == pytest.approx(math.log(0.5))
    assert drawn.logprobs.top_ids == (0, 1, 2)
    assert list(drawn.logprobs.top) == pytest.approx([math.log(p) for p in PROBABILITIES[:3]])


def test_more_top_logprobs_than_the_vocabulary_or_the_limit_has_are_cut() -> None:
    (drawn,) = draw(logits_of()[None], [row(logprobs=20)])
    assert drawn.logprobs is not None
    assert drawn.logprobs.top_ids == (0, 1, 2, 3, 4)
    (drawn,) = draw(mx.zeros((1, 100)), [row(logprobs=50)])
    assert drawn.logprobs is not None
    assert len(drawn.logprobs.top_ids) == 20


def test_half_precision_logits_are_drawn_from_in_float32() -> None:
    (drawn,) = draw(logits_of().astype(mx.bfloat16)[None], [row(temperature=0.0, logprobs=1)])
    assert drawn.token == 0
