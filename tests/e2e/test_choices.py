"""Several answers to one request, lists of prompts, echo and scores: through the SDK, streamed and whole."""

import math
from typing import Any

import openai
import pytest

from tests.support.server import Server, is_idle, poll, sse

TEXT = "The capital of France is"
COUNT = [{"role": "user", "content": "Count from 1 to 9, separated by commas."}]


def ask(server: Server, path: str, body: dict[str, Any]) -> Any:
    with server.http() as client:
        response = client.post(path, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with (
        server.http() as client,
        client.stream("POST", path, json={"temperature": 0, **body, "stream": True}) as response,
    ):
        events = list(sse(response))
    assert events[-1] == "[DONE]"
    return [event for event in events if isinstance(event, dict)]


def texts_of(chunks: list[dict[str, Any]], count: int) -> list[str]:
    """The text of each choice of streamed completions or chats."""
    texts = [""] * count
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
    return texts


def test_n_answers_differ_by_their_seeds_and_the_first_is_that_of_one(smollm2_server: Server) -> None:
    body = {"messages": COUNT, "temperature": 1.5, "seed": 7, "max_tokens": 8}
    one = ask(smollm2_server, "/v1/chat/completions", body)
    three = ask(smollm2_server, "/v1/chat/completions", {**body, "n": 3})
    texts = [choice["message"]["content"] for choice in three["choices"]]
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert texts[0] == one["choices"][0]["message"]["content"]
    assert len(set(texts)) > 1
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 24
    chunks = streamed(smollm2_server, "/v1/chat/completions", {**body, "n": 3})
    assert texts_of(chunks, 3) == texts
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    for index in range(3):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["delta"].get("role") for choice in own].count("assistant") == 1
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_prompts_of_every_kind_are_answered_in_order_as_each_is_alone(smollm2_server: Server) -> None:
    prompts = [TEXT, "One, two, three,", "def add(a, b):"]
    body = {"max_tokens": 6}
    alone = [ask(smollm2_server, "/v1/completions", {**body, "prompt": prompt}) for prompt in prompts]
    wanted = [one["choices"][0]["text"] for one in alone]
    together = ask(smollm2_server, "/v1/completions", {**body, "prompt": prompts, "n": 2})
    assert [choice["text"] for choice in together["choices"]] == [text for text in wanted for _ in range(2)]
    assert together["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)
    assert together["usage"]["completion_tokens"] == 2 * sum(one["usage"]["completion_tokens"] for one in alone)
    assert texts_of(streamed(smollm2_server, "/v1/completions", {**body, "prompt": prompts}), 3) == wanted
    scored = ask(smollm2_server, "/v1/completions", {**body, "prompt": prompts[0], "echo": True, "logprobs": 0})
    assert scored["choices"][0]["text"] == TEXT + wanted[0]


def test_echo_scores_the_prompts_own_tokens(smollm2_server: Server) -> None:
    """The shape lm-eval sends: ids in a list of lists, and the score of each id."""
    ids = [[504, 3575, 282, 4649, 314], [11, 12, 13]]
    body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
    found = ask(smollm2_server, "/v1/completions", body)
    for choice, prompt in zip(found["choices"], ids, strict=True):
        scores = choice["logprobs"]
        assert {len(part) for part in scores.values()} == {len(prompt) + 1}
        assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
        assert all(-30 < score <= 0 for score in scores["token_logprobs"][1:])
        assert all(
            max(top.values()) >= score
            for top, score in zip(scores["top_logprobs"][1:], scores["token_logprobs"][1:], strict=True)
        )
        assert "".join(scores["tokens"]) == choice["text"]
        assert [
            choice["text"][at : at + len(token)]
            for at, token in zip(scores["text_offset"], scores["tokens"], strict=True)
        ] == scores["tokens"]
    # The same token has the same score in an answer.
    step = ask(
        smollm2_server,
        "/v1/completions",
        {"prompt": [ids[0][:-1]], "logprobs": 1, "max_tokens": 1, "logit_bias": {str(ids[0][-1]): 100}},
    )
    assert step["choices"][0]["logprobs"]["token_logprobs"][0] == pytest.approx(
        found["choices"][0]["logprobs"]["token_logprobs"][4], abs=1e-3
    )
    chunks = streamed(smollm2_server, "/v1/completions", body)
    assert texts_of(chunks, 2) == [choice["text"] for choice in found["choices"]]
    offsets = [
        at
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == 0
        for at in choice["logprobs"]["text_offset"]
    ]
    assert offsets == found["choices"][0]["logprobs"]["text_offset"]


def test_best_of_returns_the_likeliest(smollm2_server: Server) -> None:
    body = {"prompt": TEXT, "temperature": 1.5, "seed": 3, "max_tokens": 6}
    four = ask(smollm2_server, "/v1/completions", {**body, "n": 4, "logprobs": 0})
    means = [
        math.fsum(choice["logprobs"]["token_logprobs"]) / len(choice["logprobs"]["token_logprobs"])
        for choice in four["choices"]
    ]
    ranked = [four["choices"][place]["text"] for place in sorted(range(4), key=lambda place: -means[place])]
    best = ask(smollm2_server, "/v1/completions", {**body, "n": 2, "best_of": 4})
    assert [choice["text"] for choice in best["choices"]] == ranked[:2]
    assert [choice["logprobs"] for choice in best["choices"]] == [None, None]
    assert best["usage"]["completion_tokens"] == four["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1, -1]]}, "prompt"),
        ({"prompt": [[1, 10**6]]}, "prompt"),
        ({"prompt": {"text": "x"}}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "x", "n": 3, "best_of": 2}, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "messages": []}, "messages"),
        ({"prompt": "x", "n": 0}, "n"),
    ],
)
def test_what_completions_cannot_do_is_a_400(smollm2_server: Server, body: dict[str, Any], param: str) -> None:
    with smollm2_server.http() as client:
        response = client.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_an_assistants_last_words_are_gone_on_with(smollm2_server: Server) -> None:
    turns = [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    body = {"messages": turns, "max_tokens": 4}
    went_on = ask(smollm2_server, "/v1/chat/completions", body)
    assert went_on["choices"][0]["message"]["content"].startswith(" Paris")
    vllm = {**body, "continue_final_message": True, "add_generation_prompt": False}
    assert (
        ask(smollm2_server, "/v1/chat/completions", vllm)["choices"][0]["message"] == went_on["choices"][0]["message"]
    )
    anew = ask(smollm2_server, "/v1/chat/completions", {**body, "continue_final_message": False})
    assert anew["usage"]["prompt_tokens"] > went_on["usage"]["prompt_tokens"]


def test_a_history_with_tools_reaches_the_model(smollm2_server: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    turns = [
        {"role": "user", "content": "Is it raining in Paris?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": [{"type": "text", "text": "sunny"}]},
    ]
    with_history = ask(smollm2_server, "/v1/chat/completions", {"messages": turns, "max_tokens": 2})
    without = ask(smollm2_server, "/v1/chat/completions", {"messages": turns[:1], "max_tokens": 2})
    assert with_history["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"] + 30
    old = [
        turns[0],
        {"role": "assistant", "content": None, "function_call": {"name": "weather", "arguments": {"city": "Paris"}}},
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    again = ask(smollm2_server, "/v1/chat/completions", {"messages": old, "max_tokens": 2})
    assert again["usage"]["prompt_tokens"] == with_history["usage"]["prompt_tokens"]


def test_usage_can_be_in_every_chunk_and_grows(smollm2_server: Server) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": COUNT, "max_tokens": 6, "stream_options": options}
    chunks = streamed(smollm2_server, "/v1/chat/completions", body)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 6)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {chunks[-1]["usage"]["prompt_tokens"]}
    assert chunks[-1]["choices"] == [] and all(chunk["choices"] for chunk in chunks[:-1])
    plain = streamed(smollm2_server, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert [chunk["usage"] for chunk in plain[:-1]] == [None] * (len(plain) - 1)


def test_a_client_that_leaves_ends_all_its_answers_and_one_bad_prompt_begins_none(smollm2_server: Server) -> None:
    client = smollm2_server.openai()
    with client.completions.create(model="m", prompt=[TEXT] * 4, max_tokens=2000, stream=True) as stream:
        next(iter(stream))
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.completions.create(model="m", prompt=[TEXT, "x" * 500_000], max_tokens=2000)
    poll(lambda: is_idle(smollm2_server), bool, 20)
