"""Starting, dying, recovering and stopping: the whole server as the operating system sees it."""

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.field import case
from tests.support.server import Server, poll, serving, sse

LOOP = {"model": "m", "messages": [{"role": "user", "content": "loop"}], "temperature": 0, "stream": True}


def stream_to_end(server: Server, max_tokens: int, started: threading.Event, out: list[list[Any]]) -> None:
    """One stream, all of whose events are kept; ``started`` is set at its first text. The server may die under it."""
    events: list[Any] = []
    wanted = {**LOOP, "max_tokens": max_tokens}
    with (
        contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError),
        server.http() as client,
        client.stream("POST", "/v1/chat/completions", json=wanted) as response,
    ):
        for event in sse(response):
            events.append(event)
            if len(events) > 2:
                started.set()
    out.append(events)


def running_streams(server: Server, count: int, max_tokens: int = 60_000) -> tuple[list[threading.Thread], list[Any]]:
    out: list[list[Any]] = []
    flags = [threading.Event() for _ in range(count)]
    threads = [threading.Thread(target=stream_to_end, args=(server, max_tokens, flag, out)) for flag in flags]
    for thread in threads:
        thread.start()
    for flag in flags:
        assert flag.wait(60)
    return threads, out


def test_kill_9_of_the_front_ends_the_worker(script_model: Path) -> None:
    with serving(script_model) as server:
        worker = server.worker()
        threads, _ = running_streams(server, 1)
        server.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs([worker], timeout=case("P4")["worker_gone_within_s"])
        assert not alive
        threads[0].join(10)


def test_kill_9_of_the_worker_ends_its_streams_with_an_error_and_the_next_request_works(script_model: Path) -> None:
    with serving(script_model) as server:
        threads, out = running_streams(server, 8)
        server.worker().kill()
        for thread in threads:
            thread.join(30)
        assert len(out) == 8
        for events in out:
            assert events[-1] == "[DONE]"
            assert events[-2]["error"]["code"] == "worker_died"
            assert events[-2]["detail"] == events[-2]["error"]["message"]
        server.wait_health("healthy")
        answer = server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "A8-w"}])
        assert answer.choices[0].message.content == "hello <"


def test_health_is_degraded_while_the_worker_is_replaced(script_model: Path) -> None:
    with serving(script_model) as server, server.http() as client:
        assert client.get("/readyz").status_code == 200
        server.worker().kill()
        seen = poll(lambda: client.get("/health"), lambda found: found.json()["status"] != "healthy", 10)
        assert (seen.status_code, seen.json()["status"]) == (503, "degraded")
        assert client.get("/livez").status_code == 200
        server.wait_health("healthy")
        assert client.get("/readyz").status_code == 200


def test_a_request_sent_while_the_worker_restarts_waits_for_it(script_model: Path) -> None:
    with serving(script_model) as server:
        server.worker().kill()
        poll(server.health, lambda found: found["status"] != "healthy", 10)
        answer = server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "A8-w"}])
        assert answer.choices[0].message.content == "hello <"


def test_a_stopped_worker_is_noticed_and_replaced(script_model: Path) -> None:
    with serving(script_model, "--hang-timeout", "4") as server:
        worker = server.worker()
        worker.suspend()
        server.wait_health("degraded", within_s=15)
        server.wait_health("healthy", within_s=60)
        assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_a_port_in_use_is_one_clear_line_and_a_failure(script_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server([str(script_model), "--port", str(port)], port=None)
        assert server.wait_exit() == 1
        assert case("P4")["line"] in server.lines[-1]
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: path / "nowhere", "nowhere"),
        (lambda path: _broken(path, "config.json", "{"), "config.json"),
        (lambda path: _broken(path, "config.json", json.dumps({"model_type": "no_such_family"})), "no_such_family"),
        (lambda path: _broken(path, "model.safetensors", "\x00"), "model.safetensors"),
    ],
    ids=["missing", "bad-json", "unknown-family", "truncated"],
)
def test_a_model_that_cannot_be_loaded_is_one_clear_line_and_a_failure(
    make: Any, says: str, tmp_path: Path, script_model: Path
) -> None:
    copy = tmp_path / "model"
    copy.mkdir()
    for file in script_model.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    server = Server([str(make(copy))])
    assert server.wait_exit(60) == 1
    assert says in server.lines[-1] and server.lines[-1].startswith("error: ")
    assert "Traceback" not in server.log


def _broken(copy: Path, name: str, text: str) -> Path:
    (copy / name).write_text(text)
    return copy


def test_running_out_of_memory_while_loading_is_one_clear_line_and_a_failure(smollm2: Path) -> None:
    limited = "import resource as r; r.setrlimit(r.RLIMIT_DATA, (600 << 20, 600 << 20)); "
    server = Server([str(smollm2)], before=limited)
    assert server.wait_exit(120) == 1
    assert server.lines[-1].startswith("error: ") and "memory" in server.lines[-1], server.log


def test_sigterm_lets_short_answers_end_and_exits_with_0(script_model: Path) -> None:
    with serving(script_model, "--shutdown-timeout", "30") as server:
        worker = server.worker()
        threads, out = running_streams(server, 2, max_tokens=150)
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == case("P4")["exit_after_sigterm"]
        for thread in threads:
            thread.join(10)
        for events in out:
            assert events[-1] == "[DONE]"
            assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert not worker.is_running()


def test_sigterm_tells_the_answers_that_do_not_end_in_time(script_model: Path) -> None:
    with serving(script_model, "--shutdown-timeout", "0.5") as server:
        threads, out = running_streams(server, 4)
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        for thread in threads:
            thread.join(10)
        assert [(events[-2]["error"]["code"], events[-1]) for events in out] == [("shutting_down", "[DONE]")] * 4


def test_a_server_that_is_stopping_takes_no_new_connections(script_model: Path) -> None:
    with serving(script_model) as server:
        threads, _ = running_streams(server, 1)
        server.signal(signal.SIGTERM)

        def refused() -> bool:
            try:
                with server.http() as client:
                    return client.get("/livez").status_code >= 500
            except httpx.TransportError:
                return True

        poll(refused, bool, 3)
        threads[0].join(10)


def test_ctrl_c_twice_ends_at_once(script_model: Path) -> None:
    with serving(script_model, "--shutdown-timeout", "60") as server:
        worker = server.worker()
        threads, _ = running_streams(server, 1)
        server.signal(signal.SIGINT)
        time.sleep(0.3)
        before = time.monotonic()
        server.signal(signal.SIGINT)
        assert server.wait_exit() == 130
        assert time.monotonic() - before < 2
        psutil.wait_procs([worker], timeout=3)
        assert not worker.is_running()
        threads[0].join(10)


def test_sigterm_while_the_model_loads_exits_with_0(script_model: Path) -> None:
    server = Server([str(script_model)])
    poll(lambda: len(psutil.Process(server.pid).children()), lambda n: n > 0, 60)
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0


def test_an_idle_server_takes_no_processor_time(script_model: Path) -> None:
    expected = case("H6")
    with serving(script_model) as server:
        server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "A8-w"}])
        processes = [psutil.Process(server.pid), server.worker()]
        before = sum(sum(p.cpu_times()[:2]) for p in processes)
        time.sleep(expected["idle_s"])
        used = sum(sum(p.cpu_times()[:2]) for p in processes) - before
        assert used < expected["cpu_share"] * expected["idle_s"]


def test_ctrl_c_on_the_terminal_reaches_the_front_alone(script_model: Path) -> None:
    with serving(script_model) as server:
        assert os.getsid(server.worker().pid) != os.getsid(server.pid)


def test_the_serving_front_never_loads_mlx(script_model: Path) -> None:
    names = "*sorted({name.split('.')[0] for name in sys.modules})"
    tell = f"import atexit, sys; atexit.register(lambda: print('loaded:', {names})); "
    server = Server([str(script_model)], before=tell).wait_ready()
    server.openai().chat.completions.create(model="m", messages=[{"role": "user", "content": "A8-w"}])
    server.stop()
    (loaded,) = (line.split()[1:] for line in server.lines if line.startswith("loaded:"))
    assert {"fastapi", "transformers", "bramley"} <= set(loaded)
    assert not {"mlx", "mlx_lm", "torch"} & set(loaded)


def test_bound_beyond_loopback_without_a_key_it_warns(script_model: Path) -> None:
    expected = case("M8")
    with serving(script_model) as server:
        listening = {c.laddr.ip for c in psutil.Process(server.pid).net_connections("tcp") if c.status == "LISTEN"}
        assert listening == {expected["host"]}
        assert expected["warning"] not in server.log
    with serving(script_model, "--host", "0.0.0.0") as server:
        assert expected["warning"] in server.log
