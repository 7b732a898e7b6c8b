"""The main loop in a real process, with a model that misbehaves on command."""

import sys
from pathlib import Path

import pytest

from bramley.domain.wire import (
    Cancel,
    Failed,
    Finished,
    Load,
    Progress,
    Ready,
    Shutdown,
    Stats,
    StatsPlease,
    Submit,
)
from tests.support.worker_client import WorkerClient

FAULTY = Path(__file__).parents[1] / "support" / "faulty_worker.py"
TRIGGER = 13


def counter(mode: str, *more: str) -> WorkerClient:
    return WorkerClient((sys.executable, str(FAULTY), "--mode", mode, *more))


def submit(number: int, *prompt: int, max_tokens: int = 5) -> Submit:
    return Submit(sequence=number, token_ids=prompt or (1,), max_tokens=max_tokens)


def test_a_failed_step_fails_what_is_in_flight_and_the_next_request_works() -> None:
    with counter("once", "--step-s", "0.01") as worker:
        worker.load(Load())
        worker.send(submit(1, max_tokens=1000), submit(2, TRIGGER))
        for number in (1, 2):
            failed = worker.ended(number)
            assert isinstance(failed, Failed)
            assert failed.kind == "step"
            assert failed.message == "The model failed while it worked on this request; the server's log says more."
        worker.send(submit(3, TRIGGER))
        assert isinstance(worker.ended(3), Finished)
        assert worker.tokens(3) == [100, 101, 102, 103, 104]
        worker.send(Shutdown())
        assert worker.exit_code() == 0
        assert worker.process.stderr is not None
        log = worker.process.stderr.read()
        assert "ERROR a step failed" in log
        assert "Traceback" in log


def test_three_failed_steps_in_a_row_end_the_process() -> None:
    with counter("always") as worker:
        worker.load(Load())
        for number in (1, 2, 3):
            worker.send(submit(number, TRIGGER))
            assert isinstance(worker.ended(number), Failed)
        assert worker.exit_code() == 4


def test_a_step_that_works_in_between_starts_the_count_anew() -> None:
    with counter("always") as worker:
        worker.load(Load())
        for number in range(1, 6):
            worker.send(submit(2 * number, TRIGGER))
            assert isinstance(worker.ended(2 * number), Failed)
            worker.send(submit(2 * number + 1))
            assert isinstance(worker.ended(2 * number + 1), Finished)


def test_running_out_of_memory_in_a_step_is_said_as_such() -> None:
    with counter("memory") as worker:
        worker.load(Load())
        worker.send(submit(1, TRIGGER))
        failed = worker.ended(1)
        assert isinstance(failed, Failed)
        assert failed.kind == "memory"


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("fail-load", "load", "The model is broken on purpose."),
        ("bug-load", "load", "The model cannot be loaded: a bug in a loader."),
        ("memory-load", "memory", "The model does not fit into memory; choose a smaller one."),
    ],
)
def test_a_load_that_fails_is_one_sentence_and_exit_code_3(mode: str, kind: str, message: str) -> None:
    with counter(mode) as worker:
        worker.send(Load())
        assert worker.until(Failed) == Failed(kind=kind, message=message)  # type: ignore[arg-type] # one of its words
        assert worker.exit_code() == 3


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (Load(version=99), "version 99"),
        (Load(kind="smell"), "'smell'"),
        (StatsPlease(), "StatsPlease"),
    ],
    ids=["other version", "unknown kind", "no Load"],
)
def test_a_first_message_that_cannot_be_followed_is_refused(first: Load | StatsPlease, words: str) -> None:
    with counter("good") as worker:
        worker.send(first)
        failed = worker.until(Failed)
        assert failed.kind == "load"
        assert words in failed.message
        assert worker.exit_code() == 3


def test_load_progress_is_sent_a_few_times_a_second_and_ends_complete() -> None:
    with counter("slow-load", "--seconds", "1") as worker:
        worker.load(Load())
        progress = [message for message in worker.seen if isinstance(message, Progress)]
        assert 3 <= len(progress) <= 14
        assert (progress[-1].done, progress[-1].total) == (50, 50)
        assert isinstance(worker.seen[-1], Ready)


def test_what_is_sent_before_ready_is_served_after_it() -> None:
    with counter("slow-load", "--seconds", "0.2") as worker:
        worker.send(Load(), submit(1))
        assert isinstance(worker.ended(1), Finished)


def test_stats_follow_every_change_of_load_and_are_not_a_flood() -> None:
    with counter("good", "--step-s", "0.001") as worker:
        worker.load(Load())
        worker.send(submit(1, max_tokens=500), submit(2, max_tokens=10**6))
        worker.until(Stats, lambda stats: stats.running == 2)
        worker.ended(1)
        worker.until(Stats, lambda stats: stats.running == 1 and stats.finished == 1)
        assert len([message for message in worker.seen if isinstance(message, Stats)]) < 20
        worker.send(Cancel(2))
        worker.until(Stats, lambda stats: stats.running == 0)
        worker.send(StatsPlease())
        assert worker.until(Stats).finished == 2


def test_shutdown_ends_everything_in_flight_and_exits() -> None:
    with counter("good", "--step-s", "0.01") as worker:
        worker.load(Load())
        worker.send(submit(1, max_tokens=10**6), submit(2, max_tokens=10**6), Shutdown())
        for number in (1, 2):
            finished = worker.ended(number)
            assert isinstance(finished, Finished)
            assert finished.reason == "cancelled"
        assert worker.exit_code() == 0


def test_shutdown_before_load_exits_too() -> None:
    with counter("good") as worker:
        worker.send(Shutdown())
        assert worker.exit_code() == 0
