"""The streaming client, against bytes in any split and against a real server."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from bench.client import AnswerBuilder, EventReader, ask, ask_all
from bench.servers import Target, free_port

EVENTS = [b'{"choices":[{"delta":{"content":"\xc3\xa9 [DONE"}}]}', b'{"choices":[]}', b"[DONE]"]


def _chunked(parts: list[bytes]) -> bytes:
    framed = b"".join(b"%x;note=1\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def _plain(parts: list[bytes]) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(parts)


def _split(data: bytes, places: list[int]) -> Iterator[bytes]:
    for begin, end in pairwise([0, *sorted(place % len(data) for place in places), len(data)]):
        yield data[begin:end]


@given(st.lists(st.integers(0, 10_000), max_size=12), st.booleans(), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_events_are_the_same_however_the_bytes_are_split(places: list[int], chunked: bool, end: bytes) -> None:
    parts = [b": a comment" + end, *[b"data: " + event + end for event in EVENTS]]
    response = _chunked(parts) if chunked else _plain(parts)
    reader = EventReader()
    assert [event for part in _split(response, places) for event in reader.feed(part)] == EVENTS
    assert reader.status == 200


def test_an_error_event_in_a_stream_makes_the_answer_an_error() -> None:
    builder = AnswerBuilder(sent=1.0)
    builder.feed(2.0, _plain([b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', b'data: {"error":"broken"}\n\n']))
    answer = builder.finish(3.0)
    assert (answer.error, answer.text, answer.ok) == ("broken", "a", False)


def test_a_role_without_text_is_not_the_first_token() -> None:
    builder = AnswerBuilder(sent=1.0)
    builder.feed(2.0, _plain([b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n']))
    builder.feed(5.0, b'data: {"choices":[{"delta":{"reasoning_content":"hm"}}]}\n\n')
    assert builder.finish(6.0).first == 4.0


def _body(prompt: str, max_tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "stream": True}


async def test_an_answer_has_its_text_its_usage_and_a_time_for_each_piece(tiny: Target) -> None:
    answer = await ask(tiny.port, _body("one two", 5), timeout_s=30)
    assert answer.ok
    assert answer.text == "w0 w1 w2 w3 w4 "
    assert (answer.tokens, len(answer.times), len(answer.gaps), answer.finish_reason) == (5, 5, 4, "length")
    assert answer.usage and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 5)
    assert answer.sent < answer.times[0] <= answer.times[-1] <= answer.ended


async def test_many_streams_run_at_once(tiny: Target) -> None:
    answers = await ask_all(tiny.port, [_body("x", 50)] * 32, timeout_s=30)
    assert [answer.tokens for answer in answers] == [50] * 32
    assert max(answer.sent for answer in answers) < min(answer.ended for answer in answers)


async def test_a_refusal_a_broken_stream_and_a_closed_port_are_errors_of_the_answer(tiny: Target) -> None:
    refused, broken = await ask_all(tiny.port, [_body("refuse", 5), _body("break off", 5)], timeout_s=30)
    nobody = await ask(free_port(), _body("x", 5), timeout_s=30)
    assert refused.error.startswith("HTTP 400") and "refused" in refused.error
    assert broken.error.startswith("connection closed before the end") and broken.text == "w0 w1 "
    assert nobody.error.startswith("no connection")
    assert not any(answer.ok for answer in (refused, broken, nobody))


async def test_a_request_that_takes_too_long_ends_at_its_limit(tiny: Target) -> None:
    answer = await ask(tiny.port, _body("x", 1_000_000), timeout_s=0.2)
    assert answer.error == "no end after 0.2 s"


async def test_watching_can_end_a_stream_early(tiny: Target) -> None:
    seen: list[float] = []

    def third(at: float) -> bool:
        seen.append(at)
        return len(seen) >= 3

    answer = await ask(tiny.port, _body("x", 1_000_000), timeout_s=30, watch=third)
    assert not answer.error and not answer.finish_reason
    assert len(answer.times) >= 3 and list(answer.times[:3]) == seen[:3]
