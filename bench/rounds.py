"""Rounds: every server once a round, each round in the opposite order, so that a drifting machine favours no one."""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Sequence

import msgspec

from bench.client import ask, ask_all
from bench.loop import LoopPlan
from bench.outcomes import Outcome, Visit
from bench.processes import memory_watched
from bench.prompts import Message, essay
from bench.report import summary
from bench.servers import ServerRow, Settings, StartFailed, Target, command, running
from bench.workloads import WORKLOADS, Load, request, short_prompts

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
    if row.loop:
        return await _visit_loop(plan, row, number)
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


async def _visit_loop(plan: Plan, row: ServerRow, number: int) -> Visit:
    """Hand the raw loop the prompts the servers get; of the workloads it knows "short" only."""
    if "short" not in plan.workloads:
        return Visit(server=row.name, round=number)
    seed = f"{plan.load.seed} {number}"
    work = LoopPlan(
        warm_up=_warm_prompts(plan.load, seed),
        waves=short_prompts(plan.load, seed),
        max_tokens=plan.load.max_tokens,
    )
    argv, environment = command(row, plan.settings)
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, start_new_session=True
    )
    try:
        output, errors = await process.communicate(msgspec.json.encode(work))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    (plan.settings.logs / f"{number}-{row.name}.log").write_bytes(errors)
    if process.returncode:
        failure = f"{row.name} exited with {process.returncode}: {errors.decode(errors='replace').strip()[-800:]}"
        say("  " + failure)
        return Visit(server=row.name, round=number, failure=failure)
    outcomes = msgspec.json.decode(output, type=tuple[Outcome, ...])
    for outcome in outcomes:
        say("  " + summary(outcome))
    return Visit(server=row.name, round=number, outcomes=outcomes)


def _warm_prompts(load: Load, seed: str) -> list[list[Message]]:
    rng = random.Random(f"{seed} warm-up")
    return [[{"role": "user", "content": load.prompt}] if load.prompt else essay(rng) for _ in range(_WARM_STREAMS)]


async def _warm_up(target: Target, load: Load, seed: str) -> dict[str, float]:
    """The first request of a fresh server, timed from its start; then a few at once."""
    bodies = [request(target, load, messages, _WARM_TOKENS) for messages in _warm_prompts(load, seed)]
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
