"""How many prompt tokens a step reads."""

import pytest

from bramley.engine.pace import Pace


def measured(decode_s: float, prompt_rate: float, *, limit: int = 2048, target_gap_s: float = 0.2) -> Pace:
    pace = Pace(limit=limit, target_gap_s=target_gap_s)
    pace.decoded(decode_s)
    pace.read(1000, 1000 / prompt_rate)
    return pace


@pytest.mark.parametrize(
    ("decode_s", "prompt_rate", "tokens"),
    [
        (0.05, 1010, 70),  # of 200 ms 120 are aimed at, and 70 left
        (0.03, 4000, 320),  # 360 tokens, and from 256 on in whole 64s
        (0.1, 20, 8),  # 2 tokens, but never fewer than 8
        (0.4, 1000, 512),  # a gap of 2.3 decode steps
        (0.05, 10**6, 2048),  # no more than the limit
    ],
)
def test_a_chunk_fills_what_decoding_leaves_of_the_gap(decode_s: float, prompt_rate: float, tokens: int) -> None:
    assert measured(decode_s, prompt_rate).chunk(decoding=8, reading=1) == tokens


def test_with_nobody_decoding_the_limit_is_read() -> None:
    assert measured(0.1, 50, limit=256).chunk(decoding=0, reading=3) == 256


def test_many_who_wait_for_their_first_token_get_more_time_than_few_who_stream() -> None:
    pace = measured(0.2, 1000)
    assert pace.chunk(decoding=4, reading=2) == pace.chunk(decoding=4, reading=1) == 256
    assert pace.chunk(decoding=4, reading=4) == 1344  # 6.75 decode steps: 1.35 s


def test_prompts_get_a_third_of_the_time_however_close_decoding_comes_to_the_gap() -> None:
    assert measured(0.19, 1000, target_gap_s=0.8).chunk(decoding=8, reading=1) >= 160 - 64


def test_before_the_first_measurement_a_chunk_is_small() -> None:
    assert Pace(limit=2048, target_gap_s=0.2).chunk(decoding=1, reading=1) == 64
    assert Pace(limit=5, target_gap_s=0.2).chunk(decoding=1, reading=1) == 5


def test_a_limit_below_the_least_is_kept_and_an_endless_gap_reads_the_limit() -> None:
    assert measured(0.1, 100, limit=5).chunk(decoding=1, reading=1) == 5
    assert measured(0.1, 100, limit=512, target_gap_s=1e30).chunk(decoding=1, reading=1) == 512


def test_measurements_fade_so_that_a_change_shows_within_ten_steps() -> None:
    pace = measured(0.01, 100)
    for _ in range(10):
        pace.decoded(0.1)
        pace.read(100, 0.1)
    assert pace.decode_s == pytest.approx(0.1, rel=0.1)
    assert pace.prompt_rate == pytest.approx(1000, rel=0.1)
    pace.read(0, 1.0)
    assert pace.prompt_rate == pytest.approx(1000, rel=0.1)
