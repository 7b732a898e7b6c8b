"""Rounds: every server once a round, each round in the opposite order, so that a drifting machine favours no one."""

import contextlib
import random
import sys
import time
from collections.abc import AsyncIterator, Sequence

import msgspec

from bench.client import ask, ask_all
from bench.outcomes import Outcome, Visit
from bench.processes import memory_watched
from bench.prompts import essay
from bench.report import summary
from bench.servers import ServerRow, Settings, StartFailed, Target, running
from bench.workloads import WORKLOADS, Load, request

_WARM_STREAMS = 4
_WARM_TOKENS = 8


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to run: ``workloads`` are names of ``WORKLOADS``."""

    rows: tuple[ServerRow, ...]
    rounds: int
    workloads: tuple[str, ...]
    load: Load
    settings: Settings


def order(rows: Sequence[ServerRow], number: int) -> list[ServerRow]:
    """The servers of round ``number`` (from 1): as given, then reversed, and so on."""
    return list(rows) if number % 2 else list(reversed(rows))


async def visits(plan: Plan) -> AsyncIterator[Visit]:
    """Run the plan, one server at a time. A server that fails gives a Visit that says so; the others go on."""
    for number in range(1, plan.rounds + 1):
        for row in order(plan.rows, number):
            yield await _visit(plan, row, number)


async def _visit(plan: Plan, row: ServerRow, number: int) -> Visit:
    outcomes: list[Outcome] = []
    failure = ""
    say(f"round {number} of {plan.rounds}: {row.name}")
    try:
        async with running(row, plan.settings, f"{number}-{row.name}") as target, memory_watched(target.tree):
            seed = f"{plan.load.seed} {number}"
            first = await _warm_up(target, plan.load, seed)
            for name in (name for name in WORKLOADS if name in plan.workloads):
                async for outcome in WORKLOADS[name](target, plan.load, seed):
                    outcomes.append(outcome)
                    say("  " + summary(outcome))
            target.tree.sample_rss()
            start = {**first, "ready_s": target.ready_s, "peak_rss_mb": target.tree.peak_rss / 2**20}
            outcomes.append(Outcome(workload="start", level=0, values=start))
    except StartFailed as error:
        failure = str(error)
        say("  " + failure)
    return Visit(server=row.name, round=number, outcomes=tuple(outcomes), failure=failure)


async def _warm_up(target: Target, load: Load, seed: str) -> dict[str, float]:
    """The first request of a fresh server, timed from its start; then a few at once."""
    rng = random.Random(f"{seed} warm-up")
    prompts = [[{"role": "user", "content": load.prompt}] if load.prompt else essay(rng) for _ in range(_WARM_STREAMS)]
    bodies = [request(target, load, messages, _WARM_TOKENS) for messages in prompts]
    answer = await ask(target.port, bodies[0], timeout_s=load.timeout_s)
    if not answer.ok:
        raise StartFailed(f"{target.name}: the first request failed: {answer.error or 'no text'}")
    await ask_all(target.port, bodies, timeout_s=load.timeout_s)
    return {"first_token_s": answer.times[0] - target.started}


def say(line: str) -> None:
    """Progress goes to standard error; standard output holds the report alone."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()
