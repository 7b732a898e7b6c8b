"""What is done to a running server, and what is measured while it is done."""

import asyncio
import contextlib
import hashlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from bench.client import Answer, ask, ask_all
from bench.outcomes import Outcome
from bench.processes import Cpu, machine_busy
from bench.prompts import Message, essay, notes
from bench.servers import Target

_LEAVE_AFTER_PIECES = 8
_LEAVE_STREAMS = 4
_LEAVE_TOKENS = 2000
_SETTLED_PIECES = 10
_PREFILL_BEGUN_S = 1.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of the workloads: tokens, streams, seconds. ``prompt`` replaces the essays where it is not empty.

    ``body`` is merged into every request. ``timeout_s`` bounds each request.
    """

    levels: tuple[int, ...] = (1, 8, 32)
    long_levels: tuple[int, ...] = (1, 4)
    max_tokens: int = 64
    long_tokens: int = 1500
    front_streams: int = 32
    running_streams: int = 8
    running_tokens: int = 1000
    intruder_tokens: int = 3000
    abandoned_tokens: int = 6000
    watch_s: float = 40.0
    idle_s: float = 10.0
    timeout_s: float = 300.0
    prompt: str = ""
    body: dict[str, Any] = {}
    seed: int = 1


Workload = Callable[[Target, Load, str], AsyncIterator[Outcome]]


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest ranks; ``values`` must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def request(target: Target, load: Load, messages: list[Message], max_tokens: int) -> dict[str, Any]:
    """The body of a greedy streamed chat completion that ends with usage."""
    return {
        "model": target.model,
        "messages": messages,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": max_tokens,
        **load.body,
    }


def _essay(load: Load, rng: random.Random) -> list[Message]:
    return [{"role": "user", "content": load.prompt}] if load.prompt else essay(rng)


def digest(text: str) -> str:
    """A short name of a text, to compare answers by."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class _Meters(msgspec.Struct, frozen=True):
    """CPU seconds so far of the server's tree, of this process and of the whole machine, and the time of reading."""

    server: Cpu
    client: float
    machine: float
    at: float

    @classmethod
    def read(cls, target: Target) -> "_Meters":
        return cls(target.tree.cpu(), time.process_time(), machine_busy(), time.perf_counter())


async def wave(target: Target, load: Load, name: str, prompts: list[list[Message]]) -> Outcome:
    """All prompts at once, each on its own connection."""
    bodies = [request(target, load, messages, load.max_tokens) for messages in prompts]
    meters = [_Meters.read(target)]
    answers = await ask_all(
        target.port, bodies, timeout_s=load.timeout_s, ended=lambda: meters.append(_Meters.read(target))
    )
    before, after = meters
    wall = max(answer.ended for answer in answers) - before.at
    used, own = after.server.since(before.server), after.client - before.client
    others = max(0.0, after.machine - before.machine - used.total - own)
    good = [answer for answer in answers if answer.ok]
    errors = tuple(answer.error or "no text" for answer in answers if not answer.ok)
    values = {
        "errors": float(len(errors)),
        "wall_s": wall,
        "client_cpu_percent": 100 * own / wall,
        "other_cpu_percent": 100 * others / wall,
    }
    if good:
        tokens = sum(answer.tokens for answer in good)
        values |= {
            "tokens": float(tokens),
            "tokens_per_s": tokens / wall,
            "cpu_ms_per_token": 1e3 * used.total / tokens,
            "root_us_per_token": 1e6 * used.root / tokens,
            "children_us_per_token": 1e6 * used.children / tokens,
            **_latencies(good),
            **_prompt_sizes(good),
        }
    return Outcome(
        workload=name,
        level=len(prompts),
        values=values,
        errors=errors,
        texts=tuple(digest(answer.text) for answer in answers),
    )


def _latencies(answers: list[Answer]) -> dict[str, float]:
    firsts = [answer.first for answer in answers]
    values = {"ttft_p50_ms": 1e3 * percentile(firsts, 50), "ttft_p95_ms": 1e3 * percentile(firsts, 95)}
    gaps = [gap for answer in answers for gap in answer.gaps]
    if gaps:
        values |= {
            "gap_p50_ms": 1e3 * percentile(gaps, 50),
            "gap_p95_ms": 1e3 * percentile(gaps, 95),
            "gap_max_ms": 1e3 * max(gaps),
        }
    pieces = sum(len(answer.times) for answer in answers)
    return {**values, "tokens_per_piece": sum(answer.tokens for answer in answers) / pieces}


def _prompt_sizes(answers: list[Answer]) -> dict[str, float]:
    usages = [answer.usage for answer in answers if answer.usage]
    if not usages:
        return {}
    cached = [u.prompt_tokens_details.cached_tokens or 0 for u in usages if u.prompt_tokens_details]
    sizes = {"prompt_tokens": sum(usage.prompt_tokens for usage in usages) / len(usages)}
    return {**sizes, "cached_tokens": sum(cached) / len(cached)} if cached else sizes


def short_prompts(load: Load, seed: str) -> list[list[list[Message]]]:
    """The prompts of ``short``, level by level."""
    found = []
    for level in load.levels:
        rng = random.Random(f"{seed} short {level}")
        found.append([_essay(load, rng) for _ in range(level)])
    return found


async def short(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """Prompts of 30 to 60 tokens, at each level."""
    for prompts in short_prompts(load, seed):
        yield await wave(target, load, "short", prompts)


async def long(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """Long prompts that share nothing, at each level for long prompts."""
    for level in load.long_levels:
        rng = random.Random(f"{seed} long {level}")
        yield await wave(target, load, "long", [notes(rng, load.long_tokens) for _ in range(level)])


async def front(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """Many streams from a model that costs next to nothing: what is left is the server around it."""
    rng = random.Random(f"{seed} front")
    yield await wave(target, load, "front", [_essay(load, rng) for _ in range(load.front_streams)])


async def idle(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """A loaded server nobody asks anything."""
    await target.tree.until_idle(load.watch_s)
    cpu, begin = target.tree.cpu(), time.perf_counter()
    await asyncio.sleep(load.idle_s)
    used, wall = target.tree.cpu().since(cpu), time.perf_counter() - begin
    processes, threads = target.tree.counts()
    values = {
        "idle_cpu_percent": 100 * used.total / wall,
        "processes": float(processes),
        "threads": float(threads),
    }
    yield Outcome(workload="idle", level=0, values=values)


class _RunningStreams:
    """Streams kept open while something else happens to the server; notes when each of them gets text."""

    def __init__(self, target: Target, load: Load, seed: str) -> None:
        rng = random.Random(f"{seed} running")
        self.times: list[list[float]] = [[] for _ in range(load.running_streams)]
        self.answers: dict[int, Answer] = {}
        self.settled = asyncio.Event()
        self._timeout_s = load.timeout_s
        self._port = target.port
        bodies = [request(target, load, _essay(load, rng), load.running_tokens) for _ in self.times]
        self._tasks = [asyncio.create_task(self._one(index, body)) for index, body in enumerate(bodies)]

    async def _one(self, index: int, body: dict[str, Any]) -> None:
        def note(at: float) -> bool:
            self.times[index].append(at)
            if min(len(times) for times in self.times) >= _SETTLED_PIECES:
                self.settled.set()
            return False

        self.answers[index] = await ask(self._port, body, timeout_s=self._timeout_s, watch=note)
        if len(self.answers) == len(self.times):
            self.settled.set()

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def silences(self, begin: float, end: float) -> list[float]:
        """Gaps of all streams that touch the time between ``begin`` and ``end``, the one still open included."""
        gaps = []
        for index, times in enumerate(self.times):
            answer = self.answers.get(index)
            last = min(end, answer.ended) if answer else end
            points = [*[at for at in times if at < last], last]
            gaps += [after - before for before, after in itertools.pairwise(points) if after > begin]
        return gaps

    def gaps_before(self, moment: float) -> list[float]:
        return [b - a for times in self.times for a, b in itertools.pairwise(times) if b < moment]


async def head_of_line(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """Streams run; a long prompt arrives; how long are they silent, and when does its own answer begin?"""
    streams = _RunningStreams(target, load, seed)
    try:
        async with asyncio.timeout(load.timeout_s):
            await streams.settled.wait()
        messages = notes(random.Random(f"{seed} intruder"), load.intruder_tokens)
        running = len(streams.times) - len(streams.answers)
        begin = time.perf_counter()
        answer = await ask(target.port, request(target, load, messages, 8), timeout_s=load.timeout_s)
        end = answer.times[0] if answer.times else answer.ended
    except TimeoutError:
        error = f"the running streams had no {_SETTLED_PIECES} pieces each after {load.timeout_s:g} s"
        yield Outcome(workload="head-of-line", level=load.running_streams, values={"errors": 1.0}, errors=(error,))
        return
    finally:
        await streams.leave()
    errors = tuple(a.error for a in (answer, *streams.answers.values()) if a.error)
    values = {"errors": float(len(errors)), "running": float(running)}
    before, during = streams.gaps_before(begin), streams.silences(begin, end)
    if answer.ok and running and before and during:
        values |= {
            "silence_max_ms": 1e3 * max(during),
            "gap_before_p50_ms": 1e3 * percentile(before, 50),
            "silence_ratio": max(during) / percentile(before, 50),
            "intruder_ttft_ms": 1e3 * answer.first,
            "tokens_during": float(sum(begin <= at <= end for times in streams.times for at in times)),
            **_prompt_sizes([answer]),
        }
    yield Outcome(workload="head-of-line", level=load.running_streams, values=values, errors=errors)


async def disconnect(target: Target, load: Load, seed: str) -> AsyncIterator[Outcome]:
    """Clients leave, in mid-stream and during a long prefill: how long does the server go on working?"""
    rng = random.Random(f"{seed} disconnect")
    yield await _leave_streams(target, load, rng)
    yield await _leave_prefill(target, load, rng)


async def _leave_streams(target: Target, load: Load, rng: random.Random) -> Outcome:
    pieces = 0

    def leave(at: float) -> bool:
        nonlocal pieces
        pieces += 1
        return pieces >= _LEAVE_AFTER_PIECES * _LEAVE_STREAMS

    bodies = [request(target, load, _essay(load, rng), _LEAVE_TOKENS) for _ in range(_LEAVE_STREAMS)]
    answers = await ask_all(target.port, bodies, timeout_s=load.timeout_s, watch=leave)
    idle_s = await target.tree.until_idle(load.watch_s)
    errors = [answer.error for answer in answers if answer.error]
    errors += ["a stream ended before its client left" for answer in answers if answer.finish_reason]
    values = {"errors": float(len(errors)), "idle_after_s": idle_s}
    return Outcome(workload="disconnect-stream", level=_LEAVE_STREAMS, values=values, errors=tuple(errors))


async def _leave_prefill(target: Target, load: Load, rng: random.Random) -> Outcome:
    body = request(target, load, notes(rng, load.abandoned_tokens), load.max_tokens)
    task = asyncio.create_task(ask(target.port, body, timeout_s=load.timeout_s))
    done, _ = await asyncio.wait([task], timeout=_PREFILL_BEGUN_S)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    idle_s = await target.tree.until_idle(load.watch_s)
    errors = ["the answer had ended before its client left"] if done else []
    values = {"errors": float(len(errors)), "idle_after_s": idle_s}
    return Outcome(workload="disconnect-prefill", level=1, values=values, errors=tuple(errors))


# In the order in which they run: what leaves a server busy stands last.
WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        "idle": idle,
        "front": front,
        "short": short,
        "long": long,
        "head-of-line": head_of_line,
        "disconnect": disconnect,
    }
)
