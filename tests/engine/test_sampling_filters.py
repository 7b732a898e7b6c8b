"""The filters against a plain implementation that sorts, in float64."""

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bramley.domain.sampling import Sampling
from bramley.engine.sampling import RowState, SamplingRow
from bramley.engine.sampling.filters import Filters
from bramley.engine.sampling.noise import Noise
from bramley.engine.sampling.ranking import best, fewest
from bramley.engine.sampling.weights import log_sum, weights

Floats = NDArray[np.float64]

# Decisions nearer than this to a limit are not asked of float32.
MARGIN = 1e-5
# 99.95 % quantile of chi-square with as many degrees of freedom, Wilson and Hilferty's approximation.
QUANTILE = 3.29


class Reference:
    """What is kept of probabilities, and how near the nearest decision was."""

    def __init__(self, probabilities: Floats, sampling: Sampling, end_ids: set[int], coin: float) -> None:
        self.margin = math.inf
        self.left = probabilities.astype(np.float64)
        self._end_ids = end_ids
        if sampling.top_k:
            self._keep(self._order(-self.left)[: sampling.top_k])
        if sampling.min_p:
            limit = sampling.min_p * self.left.max()
            self._near(self.left[self.left > 0] / limit - 1)
            self._keep(np.flatnonzero(self.left >= limit))
        if sampling.typical_p < 1:
            share = self._share()
            information = -np.log(np.where(share > 0, share, 1))
            distance = np.where(share > 0, np.abs(information - (share * information).sum()), np.inf)
            ordered = np.sort(distance[share > 0])
            self._near(np.where(np.diff(ordered) > 0, np.diff(ordered), 1))
            self._keep_mass(self._order(distance), sampling.typical_p)
        if sampling.top_p < 1:
            self._keep_mass(self._order(-self.left), sampling.top_p)
        if coin < sampling.xtc_probability:
            self._exclude_top_choices(sampling.xtc_threshold)

    @property
    def kept(self) -> set[int]:
        return set(np.flatnonzero(self.left).tolist())

    def _share(self) -> Floats:
        share: Floats = self.left / self.left.sum()
        return share

    def _order(self, values: Floats) -> NDArray[np.intp]:
        return np.argsort(values, kind="stable")

    def _near(self, distances: Floats) -> None:
        self.margin = min(self.margin, float(np.abs(distances).min(initial=math.inf)))

    def _keep(self, ids: NDArray[np.intp]) -> None:
        kept = np.zeros_like(self.left)
        kept[ids] = self.left[ids]
        self.left = kept

    def _keep_mass(self, order: NDArray[np.intp], wanted: float) -> None:
        sums = self._share()[order].cumsum()
        self._near(sums - wanted)
        self._keep(order[: int((sums < wanted).sum()) + 1])

    def _exclude_top_choices(self, threshold: float) -> None:
        share = self._share()
        self._near(share[share > 0] - threshold)
        order = self._order(-share)
        above = [int(token) for token in order if share[token] >= threshold and share[token] > 0]
        for token in above[:-1]:
            if token not in self._end_ids:
                self.left[token] = 0


def kept_by(probabilities: Floats, sampling: Sampling, end_ids: set[int], coin: float) -> set[int]:
    """The tokens left by the real filters, by the way the real rows go."""
    state = RowState(SamplingRow(sampling, 0, end_ids=end_ids), len(probabilities))
    logits = mx.log(mx.array(probabilities.astype(np.float32)))[None]
    ids = mx.arange(len(probabilities))[None]
    if state.way.candidates is not None:
        ids, logits = best(logits, state.way.candidates)
    left = Filters([state], state.way.filters).apply(weights(logits, mx.ones((1, 1))), ids, mx.array([coin]))
    return set(np.array(ids[0])[np.array(left[0]) > 0].tolist())


# Small whole numbers make many ties.
many_weights = st.lists(st.integers(1, 30), min_size=2, max_size=200)
parameters = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(2, 210),
        "min_p": st.floats(0.01, 1.0),
        "typical_p": st.floats(0.01, 0.999),
        "top_p": st.floats(0.0, 0.999),
        "xtc_probability": st.just(0.5),
        "xtc_threshold": st.floats(0.0, 0.6),
    },
)


@settings(max_examples=300, deadline=None)
@given(drawn=many_weights, asked=parameters, coin=st.sampled_from([0.2, 0.8]), end_ids=st.sets(st.integers(0, 9)))
def test_the_kept_tokens_are_those_of_the_plain_implementation(
    drawn: list[int], asked: dict[str, Any], coin: float, end_ids: set[int]
) -> None:
    probabilities = np.array(drawn) / sum(drawn)
    sampling = Sampling(**asked)
    reference = Reference(probabilities, sampling, end_ids, coin)
    assume(reference.margin > MARGIN)
    assume(sampling.top_k != 1)
    assert kept_by(probabilities, sampling, end_ids, coin) == reference.kept


LARGE: tuple[dict[str, Any], ...] = (
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"top_k": 700},
    {"top_k": 5000, "top_p": 0.9},
    {"top_k": 128, "top_p": 0.5},
    {"typical_p": 0.3},
    {"typical_p": 0.95, "top_p": 0.9, "min_p": 1e-4},
    {"top_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": 0.01},
)


@pytest.mark.parametrize("asked", LARGE, ids=str)
@pytest.mark.parametrize("vocabulary", [1024, 1025, 4099, 49152])
@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_large_vocabularies_give_the_same_tokens(asked: dict[str, Any], vocabulary: int, spread: float) -> None:
    logits = np.random.default_rng(vocabulary).normal(size=vocabulary) * spread
    # as bfloat16 has them: many ties
    logits = np.round(logits * 32) / 32
    probabilities = np.exp(logits) / np.exp(logits).sum()
    reference = Reference(probabilities, Sampling(**asked), set(), 0.0)
    kept = kept_by(probabilities, Sampling(**asked), set(), 0.0)
    if reference.margin > MARGIN:
        assert kept == reference.kept
    else:
        # sums of so many float32 end a few tokens of the tail away
        assert probabilities[list(kept ^ reference.kept)].sum() < 3e-4


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=400),
    count=st.sampled_from([1, 2, 3, 8, 32, 128]),
    others=st.integers(0, 2),
)
def test_the_best_come_in_order_and_equal_ones_by_id(values: list[int], count: int, others: int) -> None:
    rows = np.stack([np.array(values)] + [np.roll(values, shift + 1) for shift in range(others)]).astype(np.float32)
    ids, found = best(mx.array(rows), count)
    wanted = np.argsort(-rows, axis=-1, kind="stable")[:, :count]
    assert np.array_equal(np.array(ids), wanted)
    assert np.array_equal(np.array(found), np.take_along_axis(rows, wanted, axis=-1))


def test_the_fewest_are_found_however_the_weight_lies() -> None:
    keys = np.zeros((4, 3000), dtype=np.int32)
    keys[0, 2999] = 7
    keys[1] = 1
    keys[2] = np.arange(3000)
    kept = np.array(fewest(mx.array(keys), lambda part: part.astype(mx.float32), mx.array([[5], [2999], [8995], [0]])))
    assert [int(row.sum()) for row in kept] == [1, 2999, 4, 1]
    assert kept[0, 2999]
    assert not kept[1, 2999]
    assert kept[2, 2996:].all()


def test_weights_are_the_exponentials_of_logits() -> None:
    logits = np.concatenate([np.linspace(-200, 30, 5000), [-np.inf]]).astype(np.float32)
    for temperature in (0.1, 0.7, 1.0, 5.0):
        wanted = np.exp((logits.astype(np.float64) - 30) / temperature)
        got = np.array(weights(mx.array(logits)[None], mx.array([[temperature]])))[0]
        assert got[-1] == 0
        # the exponent itself has a relative error of a float32
        big = wanted > 1e-10
        assert np.allclose(got[big], wanted[big], rtol=2e-5)
        assert (got[~big] < 2e-10).all()
    assert log_sum(mx.array(logits)[None]).item() == pytest.approx(float(np.log(np.exp(logits.astype(float)).sum())))


def test_draws_follow_the_weights_across_blocks() -> None:
    draws, width = 20000, 150
    shares = np.random.default_rng(3).random(width) ** 3 + 0.002
    shares[70:75] = 0
    shares /= shares.sum()
    noise = Noise([(1, position) for position in range(draws)], width)
    drawn = np.array(noise.pick(mx.broadcast_to(mx.array(shares.astype(np.float32) * 17), (draws, width))))
    counts = np.bincount(drawn, minlength=width)
    assert not counts[70:75].any()
    wanted = shares[shares > 0] * draws
    chi_square = float(((counts[shares > 0] - wanted) ** 2 / wanted).sum())
    freedom = len(wanted) - 1
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + QUANTILE * math.sqrt(2 / (9 * freedom))) ** 3


def test_the_coin_is_uniform_and_tells_nothing_about_the_draw() -> None:
    noise = Noise([(3, position) for position in range(20000)], 2)
    coin, drawn = np.array(noise.coin), np.array(noise.pick(mx.full((20000, 2), 0.5)))
    assert coin.min() >= 0
    assert coin.max() < 1
    assert np.abs(np.histogram(coin, 10, (0, 1))[0] - 2000).max() < 200
    assert abs(coin[drawn == 0].mean() - coin[drawn == 1].mean()) < 0.02
