"""Chat and completions through the official SDK, against the script model and SmolLM2."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.field import case
from tests.support.server import Server, create, sse

HELLO = [{"role": "user", "content": "hi"}]
HELLO_ANSWER = "Hello there! How can I assist you today?"


def script(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": name}], **more}


async def collect(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[str, list[Any]]:
    """A streamed chat: its text, and all chunks."""
    chunks = [chunk async for chunk in await create(client, body, stream=True)]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return text, chunks


def test_a_new_user_chats_with_the_real_model(smollm2_server: Server) -> None:
    answer = smollm2_server.openai().chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
        temperature=0,
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert (answer.object, answer.model) == ("chat.completion", "default")
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_streamed_and_whole_alone_and_in_a_batch_give_the_same_answer(smollm2_server: Server) -> None:
    questions = ["hi", "Name three colours.", "Count from 1 to 9, separated by commas.", "What is 2+2?"]
    bodies = [
        {"model": "m", "messages": [{"role": "user", "content": q}], "temperature": 0, "max_tokens": 24}
        for q in questions
    ]
    async with smollm2_server.async_openai() as client:
        whole = [(await create(client, body)).choices[0].message.content for body in bodies]
        assert [(await collect(client, body))[0] for body in bodies] == whole
        assert [text for text, _ in await asyncio.gather(*[collect(client, body) for body in bodies * 2])] == whole * 2


async def test_the_shape_of_a_stream(script_server: Server) -> None:
    async with script_server.async_openai() as client:
        body = script("C1-c", temperature=0, stream_options={"include_usage": True})
        text, chunks = await collect(client, body)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["stop"]
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == len(text) + 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_ends_with_done_and_says_it_is_an_event_stream(script_server: Server) -> None:
    with (
        script_server.http() as client,
        client.stream("POST", "/v1/chat/completions", json=script("A8-w", stream=True)) as response,
    ):
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-request-id"].startswith("req_")
        assert list(sse(response))[-1] == "[DONE]"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_answer_ends_at_its_limit(script_server: Server, name: str) -> None:
    answer = script_server.openai().chat.completions.create(**script("loop", temperature=0, **{name: 7}))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.completion_tokens == 7


def test_max_completion_tokens_goes_before_max_tokens_and_null_is_none(script_server: Server) -> None:
    with script_server.http() as client:
        body = script("loop", max_tokens=9, max_completion_tokens=3)
        assert client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 3
        body = script("A8-w", max_tokens=None, temperature=None, stop=None, stream=None, stream_options=None)
        assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("prompt", case("L7")["prompts"])
async def test_logprobs_are_those_of_the_tokens_shown(smollm2_server: Server, prompt: str) -> None:
    limits = {name: case("L7")[name] for name in ("max_tokens", "top_logprobs")}
    body = {"messages": [{"role": "user", "content": prompt}], "temperature": 0, "logprobs": True, **limits}
    body["model"] = "m"
    async with smollm2_server.async_openai() as client:
        whole = await create(client, body)
        text, chunks = await collect(client, body)
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content is not None
    tokens = whole.choices[0].logprobs.content
    assert len(tokens) == limits["max_tokens"]
    exact = b"".join(bytes(token.bytes or ()) for token in tokens)
    assert exact.decode(errors="replace") == whole.choices[0].message.content == text
    assert all(len(token.top_logprobs) == 3 and token.top_logprobs[0].token == token.token for token in tokens)
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in tokens)
    streamed = [t for c in chunks if c.choices and c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [t.token for t in streamed] == [t.token for t in tokens]


async def test_a_seed_repeats_an_answer_alone_and_beside_others_and_no_seed_does_not(smollm2_server: Server) -> None:
    expected = case("L5")
    async with smollm2_server.async_openai() as client:

        async def answer(seed: int | None) -> str:
            body = {"model": "m", "messages": HELLO, "temperature": expected["temperature"], "max_tokens": 12}
            found = await create(client, body, seed=seed)
            return str(found.choices[0].message.content)

        alone = await answer(expected["seed"])
        assert await answer(expected["seed"]) == alone
        others = [answer(None) for _ in range(expected["beside"])]
        together = await asyncio.gather(answer(expected["seed"]), *others)
    assert together[0] == alone
    assert len(set(together[1:])) > 1


def test_top_k_1_and_min_p_1_are_greedy_at_any_temperature(smollm2_server: Server) -> None:
    client = smollm2_server.openai()
    for extra in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}):
        found = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], temperature=2, extra_body=extra
        )
        assert found.choices[0].message.content == HELLO_ANSWER


def test_biases_and_penalties_change_the_answer(smollm2_server: Server) -> None:
    def answer(question: str, **more: Any) -> dict[str, Any]:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 24, **more}
        with smollm2_server.http() as client:
            found: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()["choices"][0]
        return found

    (first,) = answer("hi", max_tokens=1, logprobs=True, top_logprobs=1)["logprobs"]["content"]
    assert first["token"] == "Hello"
    counting = "Count from 1 to 20, separated by commas."
    plain = answer(counting)
    for more in ({"frequency_penalty": 2}, {"repetition_penalty": 2}):
        assert answer(counting, **more)["message"]["content"] != plain["message"]["content"], more
    banned = answer("hi", logit_bias={"19556": -100})["message"]["content"]
    assert not banned.startswith("Hello")
    assert len(answer("hi", stop_token_ids=[17])["message"]["content"]) < len(HELLO_ANSWER)
    assert answer("hi", min_tokens=15)["message"]["content"] != HELLO_ANSWER


def test_a_token_id_the_model_does_not_have_is_a_400(script_server: Server) -> None:
    with script_server.http() as client:
        for field in ({"logit_bias": {"99999": 1}}, {"stop_token_ids": [99999]}):
            response = client.post("/v1/chat/completions", json=script("A8-w", **field))
            assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(field)))


def test_completions_continue_a_text(smollm2_server: Server) -> None:
    client = smollm2_server.openai()
    body: dict[str, Any] = {
        "model": "m",
        "prompt": "The capital of France is",
        "max_tokens": 5,
        "temperature": 0,
        "logprobs": 2,
    }
    whole = client.completions.create(**body)
    assert whole.choices[0].text.startswith(" Paris")
    assert whole.object == "text_completion" and whole.id.startswith("cmpl-")
    found = whole.choices[0].logprobs
    assert found is not None and found.tokens is not None and "".join(found.tokens) == whole.choices[0].text
    assert found.text_offset is not None and found.text_offset[0] == 0
    chunks = list(client.completions.create(**body, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


def test_models_are_listed_and_found_by_their_names(script_server: Server) -> None:
    client = script_server.openai()
    (listed,) = client.models.list().data
    assert client.models.retrieve(listed.id).id == listed.id
    assert client.models.retrieve("default").id == "default"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("no/such")
    assert caught.value.code == "model_not_found"


def test_while_one_model_is_served_every_name_means_it_and_is_echoed(script_server: Server) -> None:
    for name in case("P1")["accepted_names"]:
        answer = script_server.openai().chat.completions.create(
            model=name, messages=[{"role": "user", "content": "A8-w"}]
        )
        assert (answer.model, answer.choices[0].message.content) == (name, "hello <")


def test_a_message_may_be_a_list_of_text_parts_or_empty(smollm2_server: Server) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    with smollm2_server.http() as client:
        bodies: list[list[dict[str, Any]]] = [
            [{"role": "user", "content": parts}],
            [{"role": "user", "content": "hi"}],
            [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": None},
                {"role": "user", "content": ""},
            ],
        ]
        found = [
            client.post("/v1/chat/completions", json={"messages": m, "max_tokens": 2, "temperature": 0}).json()
            for m in bodies
        ]
    assert found[0]["usage"] == found[1]["usage"]
    assert found[2]["usage"]["completion_tokens"] == 2


def test_a_body_sent_in_chunks_is_read(script_server: Server) -> None:
    def pieces() -> Any:
        yield from (bytes([byte]) for byte in json.dumps(script("A8-w")).encode())

    with script_server.http() as client:
        assert client.post("/v1/chat/completions", content=pieces()).status_code == 200


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(smollm2_server: Server) -> None:
    with smollm2_server.http() as client:
        response = client.post("/v1/completions", json={"prompt": "word " * 9000, "max_tokens": 1})
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert "8192" in response.json()["detail"] and "9001" in response.json()["detail"]
        response = client.post("/v1/completions", json={"prompt": "word", "max_tokens": 9000})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


def test_the_answer_without_a_limit_may_fill_the_context(script_server: Server) -> None:
    with script_server.http(timeout=httpx.Timeout(60)) as client:
        found = client.post("/v1/chat/completions", json=script("A8-w")).json()
        assert found["choices"][0]["finish_reason"] == "stop"
