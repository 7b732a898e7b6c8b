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
        # Information 0.69, 1.2, 1.9, 3.2 and 4.6 nats against an entropy of 1.17: nearest is 1, then 0, then 2.
        ({"typical_p": 0.7}, {0: 0.5 / 0.8, 1: 0.3 / 0.8}, 10.8),
        ({"typical_p": 0.9}, {0: 0.5 / 0.95, 1: 0.3 / 0.95, 2: 0.15 / 0.95}, 13.8),
        ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, {2: 0.15 / 0.2, 3: 0.04 / 0.2, 4: 0.01 / 0.2}, 13.8),
        # A coin of 0.4 mixes the distribution without its two best tokens with the whole one.
        (
            {"xtc_probability": 0.4, "xtc_threshold": 0.1},
            {0: 0.3, 1: 0.18, 2: 0.09 + 0.3, 3: 0.024 + 0.08, 4: 0.006 + 0.02},
            18.5,
        ),
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


def test_filters_that_say_nothing_change_nothing() -> None:
    for sampling in ({"top_k": 5}, {"top_k": 500}, {"xtc_threshold": 0.1}, {"typical_p": 1.0, "top_p": 1.0}):
        assert kept(PROBABILITIES, temperature=3.0, **sampling) == {0, 1, 2, 3, 4}


def test_xtc_leaves_the_tokens_that_end_the_answer() -> None:
    logits = mx.broadcast_to(logits_of(), (300, len(PROBABILITIES)))
    sampling = Sampling(seed=1, xtc_probability=1.0, xtc_threshold=0.1)
    rows = [SamplingRow(sampling, position, end_ids={0, 99}) for position in range(300)]
    assert {drawn.token for drawn in draw(logits, rows)} >= {0, 2}
    assert {drawn.token for drawn in draw(logits, rows)} <= {0, 2, 3, 4}


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


def test_tokens_that_end_the_answer_are_not_drawn_before_min_tokens() -> None:
    logits = mx.broadcast_to(logits_of(), (200, len(PROBABILITIES)))
    for temperature in (0.0, 1.0):
        sampling = Sampling(seed=1, temperature=temperature, min_tokens=100)
        rows = [SamplingRow(sampling, position, end_ids={0, 1, 99}) for position in range(200)]
        tokens = [drawn.token for drawn in draw(logits, rows)]
        assert {0, 1}.isdisjoint(tokens[:100])
        assert 0 in tokens[100:]


@pytest.mark.parametrize(
    ("sampling", "generated", "is_greedy"),
    [
        ({"temperature": 2.0, "top_k": 1}, (), True),
        ({"temperature": 2.0, "min_p": 1.0}, (), True),
        ({"temperature": 2.0, "top_p": 1e-9}, (), True),
        ({"temperature": 0.0, "logit_bias": {0: -100.0}}, (), False),
        ({"temperature": 0.0, "frequency_penalty": 2.0}, (0, 0), False),
    ],
    ids=str,
)
def test_every_parameter_a_client_sends_is_obeyed(
    sampling: dict[str, Any], generated: tuple[int, ...], is_greedy: bool
) -> None:
    rows = [SamplingRow(Sampling(seed=seed, **sampling), 0, generated=generated) for seed in range(100)]
    draws = draw(mx.broadcast_to(logits_of(), (100, len(PROBABILITIES))), rows)
    assert {drawn.token == 0 for drawn in draws} == {is_greedy}


def test_a_seed_repeats_and_other_seeds_differ() -> None:
    mx.random.seed(9)
    logits = mx.random.normal((1, 2000))
    for position in range(5):
        again = [draw(logits, [row(position, seed=42)])[0].token for _ in range(3)]
        assert len(set(again)) == 1
        assert len({draw(logits, [row(position, seed=seed)])[0].token for seed in range(20)}) > 15


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


def test_logprobs_belong_to_the_row_that_asked_and_to_its_token() -> None:
    mx.random.seed(4)
    logits = mx.random.normal((6, 3000)) * 4
    asked = [None, 0, 20, 3, None, 1]
    draws = draw(logits, [row(index, temperature=index % 2, logprobs=count) for index, count in enumerate(asked)])
    wanted = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    for index, (drawn, count) in enumerate(zip(draws, asked, strict=True)):
        if count is None:
            assert drawn.logprobs is None
            continue
        assert drawn.logprobs is not None
        assert drawn.logprobs.chosen == pytest.approx(wanted[index, drawn.token].item(), abs=1e-5)
        best = mx.argsort(-logits[index])[:count]
        assert list(drawn.logprobs.top_ids) == best.tolist()
        assert list(drawn.logprobs.top) == pytest.approx(wanted[index][best].tolist(), abs=1e-5)
        if count and index % 2 == 0:
            assert drawn.token == best[0].item()


def test_logits_that_are_not_numbers_still_give_a_token_of_the_vocabulary() -> None:
    for logits in (mx.full((4, 70), mx.nan), mx.full((4, 70), -mx.inf)):
        for drawn in draw(logits, [row(temperature=0.0), row(), row(top_p=0.5), row(top_k=20)]):
            assert 0 <= drawn.token < 70


def test_half_precision_logits_are_drawn_from_in_float32() -> None:
    (drawn,) = draw(logits_of().astype(mx.bfloat16)[None], [row(temperature=0.0, logprobs=1)])
    assert drawn.token == 0
