"""Workloads and rounds, run in small against the tiny server."""

import random
import sys

import pytest

from bench.outcomes import Outcome, Visit
from bench.prompts import essay, notes
from bench.rounds import Plan, order, visits
from bench.servers import ServerRow, Settings
from bench.workloads import WORKLOADS, Load, percentile
from tests.bench.conftest import TINY

SMALL = Load(
    levels=(1, 4),
    long_levels=(2,),
    max_tokens=10,
    front_streams=8,
    running_streams=2,
    running_tokens=500,
    watch_s=5.0,
    idle_s=0.2,
    timeout_s=60.0,
)


def _by_name(visit: Visit) -> dict[tuple[str, int], Outcome]:
    return {(outcome.workload, outcome.level): outcome for outcome in visit.outcomes}


async def test_every_workload_measures_what_it_is_named_for(settings: Settings) -> None:
    row = ServerRow(name="tiny", argv=(sys.executable, str(TINY), "{port}", "0.01"))
    plan = Plan(rows=(row,), rounds=1, workloads=tuple(WORKLOADS), load=SMALL, settings=settings)
    (visit,) = [visit async for visit in visits(plan)]
    found = _by_name(visit)
    assert not visit.failure
    # Six thousand words go by at once here, so that the answer may end before its client leaves.
    assert [o.errors for key, o in found.items() if key[0] != "disconnect-prefill"] == [()] * (len(found) - 1)
    short = found["short", 4].values
    assert (short["tokens"], short["tokens_per_piece"], short["cached_tokens"]) == (40, 1, 3)
    assert short["tokens_per_s"] == pytest.approx(short["tokens"] / short["wall_s"])
    assert short["gap_p50_ms"] <= short["gap_p95_ms"] <= short["gap_max_ms"]
    assert short["ttft_p50_ms"] <= short["ttft_p95_ms"]
    assert found["long", 2].values["prompt_tokens"] > 1000
    front = found["front", 8].values
    assert front["root_us_per_token"] > 0 and front["children_us_per_token"] == 0
    line = found["head-of-line", 2].values
    assert line["running"] == 2 and line["tokens_during"] > 0
    assert line["silence_ratio"] == pytest.approx(line["silence_max_ms"] / line["gap_before_p50_ms"])
    assert found["disconnect-stream", 4].values["idle_after_s"] < SMALL.watch_s
    assert found["idle", 0].values["processes"] == 1
    start = found["start", 0].values
    assert 0 < start["ready_s"] < start["first_token_s"] and start["peak_rss_mb"] > 1


async def test_a_server_that_does_not_start_leaves_the_others_their_turn(
    tiny_row: ServerRow, settings: Settings
) -> None:
    broken = ServerRow(name="broken", argv=("{python}", "-c", "raise SystemExit(3)"))
    plan = Plan(rows=(broken, tiny_row), rounds=2, workloads=("short",), load=SMALL, settings=settings)
    found = [visit async for visit in visits(plan)]
    assert [(v.server, v.round) for v in found] == [("broken", 1), ("tiny", 1), ("tiny", 2), ("broken", 2)]
    assert ["exited with 3" in visit.failure for visit in found] == [True, False, False, True]


def test_a_seed_gives_the_same_prompts_again_and_no_two_of_them_are_equal() -> None:
    rng, same, other = random.Random("1 1"), random.Random("1 1"), random.Random("1 2")
    first = essay(rng)
    assert first == essay(same) != essay(other)
    assert essay(rng) != first


def test_notes_have_the_length_asked_for() -> None:
    (message,) = notes(random.Random(0), 1500)
    assert 0.85 * 1500 < len(message["content"].split()) < 1500


def test_rounds_alternate() -> None:
    rows = [ServerRow(name=name, argv=()) for name in "abc"]
    assert ["".join(row.name for row in order(rows, number)) for number in (1, 2, 3)] == ["abc", "cba", "abc"]


@pytest.mark.parametrize(
    ("values", "percent", "expected"), [([3], 95, 3), ([1, 2, 3], 50, 2), ([4, 1], 50, 2.5), (range(101), 95, 95)]
)
def test_percentiles(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)
