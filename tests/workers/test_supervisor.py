"""The front's side of a worker, against real processes whose model misbehaves on command."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from bramley.api.ops.health import STATUS
from bramley.domain.errors import (
    GenerationFailed,
    ModelLoadError,
    ModelUnavailable,
    ShuttingDown,
    SlowReader,
    WorkerDied,
)
from bramley.domain.wire import Load, Progress, Submit
from bramley.workers.options import SupervisorOptions
from bramley.workers.process import WorkerProcess
from bramley.workers.stream import TokenStream
from bramley.workers.supervisor import Supervisor, ignore_progress
from tests.e2e.field import case

FAULTY = Path(__file__).parents[1] / "support" / "faulty_worker.py"
TRIGGER = 13
QUICK = SupervisorOptions(heartbeat_s=0.1, hang_s=1.5, stall_s=1.5, backoff_s=0.05, backoff_max_s=0.2, stop_s=3)


def command(mode: str, *more: str) -> tuple[str, ...]:
    return (sys.executable, str(FAULTY), "--mode", mode, *more)


@contextlib.asynccontextmanager
async def supervised(
    mode: str, *more: str, options: SupervisorOptions = QUICK, progress: list[Progress] | None = None
) -> AsyncIterator[Supervisor]:
    listener = ignore_progress if progress is None else progress.append
    supervisor = Supervisor(Load(), options, listener, command(mode, *more))
    await supervisor.start()
    try:
        yield supervisor
    finally:
        await supervisor.stop()


def submit(worker: WorkerProcess, *prompt: int, max_tokens: int = 5, buffer_tokens: int = 1000) -> TokenStream:
    return worker.submit(lambda number: Submit(sequence=number, token_ids=prompt, max_tokens=max_tokens), buffer_tokens)


async def read(stream: TokenStream) -> list[int]:
    tokens: list[int] = []
    while True:
        batch = await stream.next()
        tokens += batch.token_ids
        if batch.finished is not None:
            return tokens


async def state_becomes(supervisor: Supervisor, *wanted: str) -> None:
    async with asyncio.timeout(20):
        while supervisor.state not in wanted:
            await supervisor.changed()


async def test_tokens_arrive_in_order_and_the_end_is_told() -> None:
    async with supervised("good") as supervisor:
        worker = await supervisor.worker()
        streams = [submit(worker, 1, 2, max_tokens=n) for n in (1, 5, 20)]
        assert await asyncio.gather(*map(read, streams)) == [list(range(100, 100 + n)) for n in (1, 5, 20)]
        assert worker.active == 0


async def test_load_progress_is_passed_on() -> None:
    progress: list[Progress] = []
    async with supervised("slow-load", "--seconds", "0.3", progress=progress):
        assert progress[0].phase == "loading"
        assert progress[-1].done == progress[-1].total


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("fail-load", "broken on purpose"),
        ("bug-load", "cannot be loaded"),
        ("memory-load", "memory"),
        ("die-on-load", "killed by the system"),
    ],
)
async def test_a_first_load_that_fails_raises_one_sentence_and_leaves_no_process(mode: str, says: str) -> None:
    supervisor = Supervisor(Load(), QUICK, command=command(mode))
    with pytest.raises(ModelLoadError) as caught:
        await supervisor.start()
    assert says in caught.value.message
    assert "Traceback" not in caught.value.message and "\n" not in caught.value.message
    assert not [p for p in psutil.Process().children() if "faulty_worker" in " ".join(p.cmdline())]


async def test_a_command_that_cannot_be_run_is_a_load_error() -> None:
    supervisor = Supervisor(Load(), QUICK, command=("/nowhere/python",))
    with pytest.raises(ModelLoadError, match="could not be started"):
        await supervisor.start()


async def test_a_worker_killed_in_mid_stream_fails_its_streams_and_is_started_again() -> None:
    async with supervised("good", "--step-s", "0.01") as supervisor:
        worker = await supervisor.worker()
        streams = [submit(worker, 1, max_tokens=10_000) for _ in range(8)]
        for stream in streams:
            await stream.next()
        os.kill(worker.pid, signal.SIGKILL)
        results = await asyncio.gather(*map(read, streams), return_exceptions=True)
        assert [type(result) for result in results] == [WorkerDied] * 8
        again = await supervisor.worker()
        assert again.pid != worker.pid
        assert await read(submit(again, 1)) == [100, 101, 102, 103, 104]
        assert supervisor.restarts == 1


async def test_a_step_that_raises_once_fails_its_requests_and_the_next_one_works() -> None:
    async with supervised("once") as supervisor:
        worker = await supervisor.worker()
        with pytest.raises(GenerationFailed):
            await read(submit(worker, TRIGGER))
        assert await read(submit(worker, TRIGGER, max_tokens=2)) == [100, 101]
        assert STATUS[supervisor.state] == case("H7")["one_off"]


async def test_steps_that_always_raise_end_in_the_failed_state_where_requests_fail_at_once() -> None:
    slow = SupervisorOptions(heartbeat_s=0.1, backoff_s=30, backoff_max_s=60, give_up=1)
    async with supervised("always", options=slow) as supervisor:
        worker = await supervisor.worker()
        for _ in range(3):
            with pytest.raises(GenerationFailed):
                await read(submit(worker, TRIGGER))
        await state_becomes(supervisor, case("H7")["permanent"])
        with pytest.raises(ModelUnavailable):
            await supervisor.worker()


async def test_a_stopped_process_is_noticed_and_replaced() -> None:
    async with supervised("good") as supervisor:
        worker = await supervisor.worker()
        os.kill(worker.pid, signal.SIGSTOP)
        await state_becomes(supervisor, "unresponsive")
        await state_becomes(supervisor, "restarting")
        assert "stopped answering" in supervisor.reason
        assert (await supervisor.worker()).pid != worker.pid


async def test_a_process_that_hangs_while_it_loads_is_a_load_error() -> None:
    quick = SupervisorOptions(heartbeat_s=0.2, hang_s=2, stop_s=3)
    loading = asyncio.Event()
    supervisor = Supervisor(Load(), quick, lambda _: loading.set(), command("slow-load", "--seconds", "60"))
    starting = asyncio.create_task(supervisor.start())
    async with asyncio.timeout(60):
        await loading.wait()
    (worker,) = (p for p in psutil.Process().children() if "faulty_worker" in " ".join(p.cmdline()))
    worker.suspend()
    with pytest.raises(ModelLoadError, match="stopped answering"):
        await starting


async def test_a_process_that_answers_again_in_time_is_kept() -> None:
    patient = SupervisorOptions(heartbeat_s=0.1, hang_s=30)
    async with supervised("good", options=patient) as supervisor:
        worker = await supervisor.worker()
        os.kill(worker.pid, signal.SIGSTOP)
        await state_becomes(supervisor, "unresponsive")
        os.kill(worker.pid, signal.SIGCONT)
        await state_becomes(supervisor, "ready")
        assert (await supervisor.worker()).pid == worker.pid


async def test_a_step_that_does_not_end_is_killed_but_a_long_load_is_not() -> None:
    async with supervised("slow-load", "--seconds", "1.5") as supervisor:
        assert supervisor.restarts == 0
    async with supervised("hang", "--seconds", "60") as supervisor:
        worker = await supervisor.worker()
        with pytest.raises(WorkerDied, match="made no progress"):
            await read(submit(worker, TRIGGER))


async def test_a_reader_that_falls_behind_is_cut_off_without_holding_up_others() -> None:
    async with supervised("good") as supervisor:
        worker = await supervisor.worker()
        slow = submit(worker, 1, max_tokens=100_000, buffer_tokens=50)
        quick = [submit(worker, 1, max_tokens=200) for _ in range(3)]
        assert [len(tokens) for tokens in await asyncio.gather(*map(read, quick))] == [200] * 3
        with pytest.raises(SlowReader):
            await read(slow)


async def test_cancelling_ends_the_sequence_with_the_tokens_kept() -> None:
    async with supervised("good", "--step-s", "0.01") as supervisor:
        worker = await supervisor.worker()
        stream = submit(worker, 1, max_tokens=10_000)
        await stream.next()
        stream.cancel(keep_tokens=1)
        finished = await stream.end()
        assert (finished.reason, finished.completion_tokens) == ("cancelled", 1)


async def test_stopping_fails_open_streams_and_ends_the_process() -> None:
    async with supervised("good", "--step-s", "0.01") as supervisor:
        worker = await supervisor.worker()
        stream = submit(worker, 1, max_tokens=10_000)
        await stream.next()
        pid = worker.pid
    with pytest.raises(ShuttingDown):
        await read(stream)
    assert not psutil.pid_exists(pid)
    with pytest.raises(ShuttingDown):
        await supervisor.worker()
