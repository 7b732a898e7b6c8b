"""The real worker: ``python -m bramley.worker`` with real models, over its socket."""

import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from mlx_lm.utils import load_model

from bramley.domain.sampling import Sampling
from bramley.domain.wire import (
    Cancel,
    ComputeOptions,
    EngineOptions,
    Failed,
    Finished,
    Load,
    Ready,
    Stats,
    Step,
    Submit,
)
from tests.support.oracle import Oracle
from tests.support.worker_client import WorkerClient

GREEDY = Sampling(temperature=0.0)
# The shim is not what is tested here, and building it takes longer than all the rest.
NO_SHIM = ComputeOptions(blas="off")


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((index * 37 + salt * 101 + 11) % 500 + 3 for index in range(length))


def submit(number: int, length: int = 20, max_tokens: int = 16) -> Submit:
    return Submit(sequence=number, token_ids=prompt_of(length, number), max_tokens=max_tokens, sampling=GREEDY)


def load(path: Path, chunk: int = 16) -> Load:
    return Load(path=str(path), compute=NO_SHIM, engine=EngineOptions(prefill_chunk=chunk))


def test_eight_requests_at_once_stream_the_tokens_of_mlx_lm(tiny_llama: Path) -> None:
    lengths = (1, 2, 15, 16, 17, 40, 90, 200)
    with WorkerClient() as worker:
        ready = worker.load(load(tiny_llama))
        assert (ready.vocab_size, ready.eos_token_ids, ready.threads >= 1) == (512, (2,), True)
        worker.send(*(submit(n, length) for n, length in enumerate(lengths)))
        for number in range(len(lengths)):
            if not any(isinstance(m, Finished) and m.sequence == number for m in worker.seen):
                finished = worker.ended(number)
                assert isinstance(finished, Finished)
        steps = [message for message in worker.seen if isinstance(message, Step)]
        assert max(len(step.rows) for step in steps) > 4
        assert max(len(step.rows) for step in steps) <= 8
        model = load_model(tiny_llama)[0]
        for n, length in enumerate(lengths):
            assert worker.tokens(n) == Oracle(model, prompt_of(length, n), 16).tokens


def test_cancel_works_in_prefill_and_in_decode_and_leaves_the_others_alone(tiny_llama: Path) -> None:
    with WorkerClient() as worker:
        worker.load(load(tiny_llama, chunk=1))
        worker.send(submit(1, 10, 400), submit(2, 1500, 5))
        worker.until(Step)
        worker.send(Cancel(2), Cancel(99))
        cancelled = worker.ended(2)
        assert isinstance(cancelled, Finished)
        assert (cancelled.reason, cancelled.completion_tokens, worker.tokens(2)) == ("cancelled", 0, [])
        worker.until(Step, lambda _: len(worker.tokens(1)) > 5)
        worker.send(Cancel(1, 3))
        cancelled = worker.ended(1)
        assert isinstance(cancelled, Finished)
        assert (cancelled.reason, cancelled.completion_tokens) == ("cancelled", 3)
        assert len(worker.tokens(1)) < 400
        worker.until(Stats, lambda stats: stats.running == 0)


@pytest.mark.parametrize("end", ["socket", "SIGTERM"])
def test_the_worker_ends_at_once_in_the_middle_of_a_long_computation(smollm2: Path, end: str) -> None:
    with WorkerClient() as worker:
        worker.load(load(smollm2, chunk=8192))
        worker.send(Submit(sequence=1, token_ids=(5,) * 4000, max_tokens=1, sampling=GREEDY))
        worker.pong(lambda pong: pong.phase == "prefill" and pong.busy_s > 0.5)
        began = time.monotonic()
        if end == "socket":
            worker.socket.shutdown(socket.SHUT_RDWR)
            worker.socket.close()
        else:
            worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == (0 if end == "socket" else -signal.SIGTERM)
        assert time.monotonic() - began < 3


def test_a_real_model_in_a_real_worker_says_the_same_alone_and_among_others(smollm2: Path) -> None:
    with WorkerClient() as worker:
        worker.load(Load(path=str(smollm2), cache_dir=str(smollm2.parents[1]), engine=EngineOptions(prefill_chunk=32)))
        prompt = tuple(range(1000, 1020))
        hot = Sampling(temperature=0.8, top_p=0.9, seed=11)
        worker.send(Submit(sequence=1, token_ids=prompt, max_tokens=6, sampling=hot))
        worker.ended(1)
        worker.send(
            Submit(sequence=2, token_ids=prompt[5:], max_tokens=6, sampling=Sampling(seed=2)),
            Submit(sequence=3, token_ids=prompt, max_tokens=6, sampling=hot),
            Submit(sequence=4, token_ids=prompt[9:], max_tokens=6, sampling=Sampling(seed=4)),
        )
        worker.until(Stats, lambda stats: stats.finished == 4)
        assert worker.tokens(3) == worker.tokens(1)
        assert len(worker.tokens(2)) == 6


def test_a_model_that_is_not_there_is_one_sentence_and_exit_code_3(tmp_path: Path) -> None:
    with WorkerClient() as worker:
        worker.send(load(tmp_path / "nowhere"))
        failed = worker.until(Failed)
        assert failed.kind == "load"
        assert "nowhere" in failed.message
        assert worker.exit_code() == 3


def test_an_idle_worker_computes_nothing(tiny_llama: Path) -> None:
    with WorkerClient() as worker:
        worker.load(load(tiny_llama))
        worker.send(submit(1))
        worker.until(Stats, lambda stats: stats.finished == 1)
        process = psutil.Process(worker.process.pid)
        before = sum(process.cpu_times()[:2])
        assert not _readable(worker.socket, 2.0)
        assert sum(process.cpu_times()[:2]) - before <= 0.02


def _readable(end: socket.socket, timeout_s: float) -> bool:
    """Whether anything comes within the time: an idle worker has nothing to say either."""
    end.settimeout(timeout_s)
    try:
        return bool(end.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False


def test_the_embedded_model_is_served_when_no_path_is_given(smollm2: Path) -> None:
    with WorkerClient() as worker:
        ready = worker.load(Load(cache_dir=str(smollm2.parents[1]), compute=NO_SHIM))
        assert isinstance(ready, Ready)
        assert (ready.path, ready.model_type, ready.vocab_size) == (str(smollm2), "llama", 49152)
