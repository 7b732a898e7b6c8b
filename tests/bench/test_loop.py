"""The raw loops of both engines are measured as the servers are: same prompts, same figures, same answers."""

from pathlib import Path

import msgspec

from bench.outcomes import Visit
from bench.rounds import Plan, visits
from bench.servers import ROWS, ServerRow, Settings
from bench.workloads import Load

LOOPS = (ROWS["bramley-loop"], ROWS["mlx_lm-loop"])


async def visited(settings: Settings, *rows: ServerRow, workloads: tuple[str, ...] = ("short",)) -> list[Visit]:
    load = Load(levels=(1, 3), max_tokens=8, prompt="loop")
    plan = Plan(rows=rows, rounds=1, workloads=workloads, load=load, settings=settings)
    return [visit async for visit in visits(plan)]


async def test_both_loops_give_the_servers_figures_and_the_same_answers(settings: Settings, script_model: Path) -> None:
    ours, theirs = await visited(msgspec.structs.replace(settings, model=str(script_model)), *LOOPS)
    assert [visit.failure for visit in (ours, theirs)] == ["", ""]
    assert [(one.workload, one.level) for one in ours.outcomes] == [("short", 1), ("short", 3)]
    for mine, other in zip(ours.outcomes, theirs.outcomes, strict=True):
        assert mine.texts == other.texts and len(mine.texts) == mine.level
        for outcome in (mine, other):
            assert (outcome.values["tokens"], outcome.values["errors"]) == (8 * outcome.level, 0)
            assert 0 < outcome.values["ttft_p50_ms"] < 1e3 * outcome.values["wall_s"]


async def test_a_loop_has_nothing_to_do_with_other_workloads(settings: Settings) -> None:
    [visit] = await visited(settings, LOOPS[0], workloads=("idle",))
    assert (visit.outcomes, visit.failure) == ((), "")


async def test_a_loop_that_fails_says_why(settings: Settings, tmp_path: Path) -> None:
    [visit] = await visited(msgspec.structs.replace(settings, model=str(tmp_path)), LOOPS[0])
    assert visit.outcomes == () and visit.failure.startswith("bramley-loop exited with 1: ")
