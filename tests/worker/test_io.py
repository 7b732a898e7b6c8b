"""The worker's end of the socket: a real process whose model is a counter, real frames."""

import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from bramley.domain.wire import Finished, Load, Ping, Pong, StatsPlease, Step, Submit, frame
from tests.support.worker_client import WorkerClient

FAULTY = Path(__file__).parents[1] / "support" / "faulty_worker.py"
TRIGGER = 13


def counter(mode: str, *more: str) -> WorkerClient:
    return WorkerClient((sys.executable, str(FAULTY), "--mode", mode, *more))


def test_a_ping_is_answered_while_the_main_thread_is_stuck() -> None:
    with counter("hang", "--seconds", "600") as worker:
        worker.load(Load())
        idle = worker.pong(lambda pong: pong.phase == "idle")
        assert idle.busy_s == 0.0
        worker.send(Submit(sequence=1, token_ids=(TRIGGER,), max_tokens=5))
        stuck = worker.pong(lambda pong: pong.busy_s > 0.3)
        assert (stuck.nonce, stuck.phase) == (worker.nonce, "decode")
        assert worker.pong().beat == stuck.beat > idle.beat


def test_beats_go_on_while_a_model_loads() -> None:
    with counter("slow-load", "--seconds", "1") as worker:
        worker.send(Load())
        first = worker.pong(lambda pong: pong.phase == "loading")
        later = worker.pong(lambda pong: pong.beat >= first.beat + 3)
        assert later.phase == "loading"


def test_a_front_that_does_not_read_stops_neither_the_worker_nor_what_it_sends() -> None:
    """Far more than both socket buffers hold goes each way before anything is read."""
    tokens = 8000
    with counter("good", "--step-s", "0") as worker:
        worker.load(Load())
        worker.send(*(Submit(sequence=n, token_ids=(1,), max_tokens=tokens) for n in range(1, 33)))
        worker.socket.settimeout(60)
        big = Submit(sequence=99, token_ids=(1,) * 3_000_000, max_tokens=1)
        worker.socket.sendall(frame(big))
        worker.send(Ping(7))
        assert isinstance(worker.ended(99), Finished)
        for number in range(1, 33):
            if not any(isinstance(m, Finished) and m.sequence == number for m in worker.seen):
                worker.ended(number)
            assert worker.tokens(number) == [100 + count % 100 for count in range(tokens)]


def test_a_pong_goes_before_what_waits() -> None:
    with counter("good", "--step-s", "0") as worker:
        worker.load(Load())
        worker.send(*(Submit(sequence=n, token_ids=(1,), max_tokens=4000) for n in range(1, 33)))
        process = psutil.Process(worker.process.pid)
        # All is computed, and most of it waits behind a full socket, when the process sleeps.
        while sum(process.cpu_times()[:2]) < 0.5 or process.cpu_percent(0.2) > 5:
            pass
        worker.send(Ping(1))
        worker.until(Pong)
        assert not any(isinstance(message, Finished) for message in worker.seen)
        worker.ended(1)


def test_frames_may_arrive_in_any_pieces() -> None:
    with counter("good") as worker:
        for byte in frame(Load()) + frame(Submit(sequence=1, token_ids=(1, 2), max_tokens=2)):
            worker.socket.sendall(bytes([byte]))
        assert isinstance(worker.ended(1), Finished)
        assert worker.tokens(1) == [100, 101]


@pytest.mark.parametrize(
    "rubbish", [b"\x00\x00\x00\x03\xff\xff\xff", b"\xff\xff\xff\xff"], ids=["no msgpack", "too long"]
)
def test_rubbish_ends_the_worker_with_a_line_in_the_log(rubbish: bytes) -> None:
    with counter("good") as worker:
        worker.load(Load())
        worker.socket.sendall(rubbish)
        assert worker.exit_code() == 1
        assert worker.process.stderr is not None
        assert "CRITICAL The server sent something that is no message" in worker.process.stderr.read()


@pytest.mark.parametrize("mode", ["hang", "stuck-load", "good"])
def test_the_end_of_the_front_is_the_end_of_the_worker_whatever_it_does(mode: str) -> None:
    with counter(mode, "--seconds", "600") as worker:
        worker.send(Load(), Submit(sequence=1, token_ids=(TRIGGER,), max_tokens=10**9), Ping(1))
        worker.until(Pong)
        worker.socket.shutdown(socket.SHUT_RDWR)
        worker.socket.close()
        began = time.monotonic()
        assert worker.process.wait(10) == 0
        assert time.monotonic() - began < 3


def test_interrupt_is_ignored_and_terminate_ends_the_worker() -> None:
    with counter("good") as worker:
        worker.load(Load())
        worker.process.send_signal(signal.SIGINT)
        worker.send(StatsPlease(), Submit(sequence=1, token_ids=(1,), max_tokens=1))
        worker.until(Step)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.exit_code() == -signal.SIGTERM
