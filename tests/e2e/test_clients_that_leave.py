"""Clients that leave, read slowly, or ask while the model computes."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.field import case
from tests.support.server import Server, is_idle, poll, serving, sse


def body(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], "temperature": 0, **more}


def words(count: int) -> str:
    return " ".join(f"word{i % 97}" for i in range(count))


def leave_stream(server: Server, wanted: dict[str, Any], chunks: int) -> None:
    with server.http() as client, client.stream("POST", "/v1/chat/completions", json=wanted) as response:
        for _, _ in zip(sse(response), range(chunks), strict=False):
            pass


def test_a_client_that_leaves_its_stream_ends_the_work(smollm2_server: Server) -> None:
    expected = case("G1")
    leave_stream(
        smollm2_server,
        body("Write a very long story.", stream=True, max_tokens=expected["max_tokens"], ignore_eos=True),
        expected["chunks_before_leaving"],
    )
    poll(lambda: is_idle(smollm2_server), bool, expected["within_s"] + 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_during_prefill_ends_the_work(smollm2_server: Server, stream: bool) -> None:
    expected = case("G3")
    with contextlib.suppress(httpx.ReadTimeout), smollm2_server.http(timeout=expected["leave_after_s"]) as client:
        long = body(words(expected["prompt_words"] // 2), stream=stream, max_tokens=5)
        with client.stream("POST", "/v1/chat/completions", json=long) as response:
            for _ in response.iter_bytes():
                pass
    answer = smollm2_server.openai().chat.completions.create(**body("hi", max_tokens=2))
    assert answer.choices[0].message.content == "Hello there"
    poll(lambda: is_idle(smollm2_server), bool, expected["idle_within_s"])


def test_a_client_that_leaves_while_queued_never_runs(script_model: Path) -> None:
    expected = case("G4")
    with serving(script_model, "--max-num-seqs", expected["max_num_seqs"]) as server:
        out: list[str] = []

        def first() -> None:
            leave_stream(server, body("loop", stream=True, max_tokens=3000), 3002)
            out.append("A")

        def last() -> None:
            server.openai().chat.completions.create(**body("A8-w"))
            out.append("C")

        running = threading.Thread(target=first)
        running.start()
        with contextlib.suppress(httpx.ReadTimeout), server.http(timeout=0.3) as client:
            client.post("/v1/chat/completions", json=body("loop", max_tokens=60_000))
        waiting = threading.Thread(target=last)
        waiting.start()
        running.join(60)
        # Had B run, C would wait for its 60,000 tokens.
        waiting.join(20)
        assert out == ["A", "C"]


async def test_one_that_leaves_a_batch_does_not_disturb_the_others(smollm2_server: Server) -> None:
    expected = case("G5")
    wanted = body("Name three colours.", max_tokens=24)
    async with smollm2_server.async_openai() as client:
        solo = (await client.chat.completions.create(**wanted)).choices[0].message.content

        async def leaver() -> None:
            stream = await client.chat.completions.create(**body("hi", max_tokens=500, stream=True))
            for _ in range(expected["leave_after_chunks"]):
                await anext(stream)
            await stream.close()

        found, _ = await asyncio.gather(client.chat.completions.create(**wanted), leaver())
        assert found.choices[0].message.content == solo


def test_status_answers_while_the_model_computes(smollm2_server: Server) -> None:
    expected = case("H9")
    prompt = body(words(expected["prompt_words"] // 2), max_tokens=1)

    def ask() -> None:
        with smollm2_server.http() as client:
            client.post("/v1/chat/completions", json=prompt)

    busy = threading.Thread(target=ask)
    busy.start()
    slowest = 0.0
    with smollm2_server.http() as client:
        for _ in range(20):
            for path in expected["paths"]:
                before = time.monotonic()
                assert client.get(path).status_code == 200
                slowest = max(slowest, time.monotonic() - before)
    assert busy.is_alive()
    assert slowest < expected["within_s"]
    busy.join(120)


def test_a_mixed_sequence_of_calls_leaves_a_clean_log(script_model: Path) -> None:
    expected = case("H8")
    with serving(script_model) as server:
        client = server.openai()
        for _ in client.chat.completions.create(**body("A1", stream=True)):
            pass
        client.chat.completions.create(**body("A1"))
        client.completions.create(model="m", prompt="x", max_tokens=3)
        threads = [threading.Thread(target=leave_stream, args=(server, body("A9", stream=True), 99)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.stop()
        assert server.process.returncode == 0
        assert not [word for word in expected["forbidden_in_log"] if word in server.log]


def test_memory_does_not_grow_with_the_number_of_requests(script_model: Path) -> None:
    expected = case("F1")
    with serving(script_model) as server, server.http() as client:
        processes = [psutil.Process(server.pid), server.worker()]
        after: dict[int, float] = {}
        for number in range(1, expected["requests"] + 1):
            wanted = body("long", max_tokens=4, user=f"user {number}", stream=number % 2 == 0)
            assert client.post("/v1/chat/completions", json=wanted).status_code == 200
            if number in (expected["measured_from"], expected["requests"]):
                after[number] = sum(process.memory_info().rss for process in processes) / 2**20
        assert after[expected["requests"]] - after[expected["measured_from"]] < expected["growth_mib"]


async def test_a_client_that_does_not_read_is_cut_off_and_holds_no_one_up(script_model: Path) -> None:
    """It is told, its sequence ends, and eight others get all their tokens meanwhile."""
    with serving(script_model, "--stream-buffer-tokens", "500", "--max-num-seqs", "16") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((host, int(port)))
            # Large chunks, so that the buffers of the two sockets are full soon.
            wordy = body("loop", stream=True, max_tokens=60_000, logprobs=True, top_logprobs=20)
            data = json.dumps(wordy).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
            lazy.sendall(head.encode() + data)
            async with server.async_openai() as client:

                async def reader() -> str:
                    chunks = await client.chat.completions.create(**body("loop", stream=True, max_tokens=399))
                    return "".join([c.choices[0].delta.content or "" async for c in chunks])

                assert await asyncio.gather(*[reader() for _ in range(8)]) == ["tick tock\n" * 133] * 8
            await asyncio.to_thread(poll, lambda: is_idle(server), bool, 90)
            lazy.settimeout(20)
            received = b""
            while b"[DONE]" not in received:
                more = lazy.recv(1 << 16)
                assert more, "the connection was closed without a word"
                received = received[-4096:] + more
            assert b"slow_reader" in received
