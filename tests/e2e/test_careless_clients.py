"""Clients that break the rules of HTTP cost themselves, and nobody else."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.server import Server, is_idle, poll


@contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        yield raw


def request(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, **more}


def read_all(raw: socket.socket) -> bytes:
    received = b""
    while data := raw.recv(1 << 16):
        received += data
    return received


def test_what_is_no_http_is_a_400_in_the_usual_shape(script_server: Server) -> None:
    with connected(script_server) as raw:
        raw.sendall(b"NONSENSE\r\n\r\n")
        head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_headers_without_end_are_refused(script_server: Server) -> None:
    with connected(script_server) as raw:
        raw.sendall(b"GET /livez HTTP/1.1\r\n" + b"x-filler: " + b"y" * (80 << 10))
        assert read_all(raw).startswith(b"HTTP/1.1 431 ")


def test_a_client_that_pipelines_gets_the_first_answer_and_a_closed_connection(script_server: Server) -> None:
    with connected(script_server) as raw:
        raw.sendall(request(chat("A8-w")) * 2)
        received = read_all(raw)
    assert received.count(b"HTTP/1.1 200") == 1
    assert b"hello <" in received


def test_a_client_that_pipelines_and_leaves_ends_its_work(script_server: Server) -> None:
    with connected(script_server) as raw:
        raw.sendall(request(chat("loop", max_tokens=60_000)) * 2)
        time.sleep(0.5)
    poll(lambda: is_idle(script_server), bool, 10)


def test_a_connection_is_used_again_after_an_error(script_server: Server) -> None:
    with script_server.http() as client:
        for _ in range(3):
            assert client.post("/v1/chat/completions", content=b"{").status_code == 400
            assert client.post("/v1/chat/completions", json=chat("A8-w")).status_code == 200


def test_many_wrong_messages_are_one_error_at_once(script_server: Server) -> None:
    with script_server.http() as client:
        response = client.post("/v1/chat/completions", content=b'{"messages": [' + b"1," * 1_000_000 + b"1]}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0]")


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(smollm2_server: Server) -> None:
    with smollm2_server.http() as client:
        before = time.monotonic()
        response = client.post("/v1/completions", json={"prompt": "a" * (10 << 20)})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert time.monotonic() - before < 5


def test_a_client_cannot_write_lines_into_the_log(script_server: Server) -> None:
    with script_server.http() as client:
        client.get("/x%0aCRITICAL%20forged%1b%5B31m")
    poll(lambda: [line for line in script_server.lines if "forged" in line], bool, 5)
    assert not [line for line in script_server.lines if line.startswith("CRITICAL") or "\x1b" in line]
