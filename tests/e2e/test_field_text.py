"""Field cases about text: whole, streamed, and all at once must agree, and have the right value where it is known."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.field import text_cases
from tests.support.server import Server, create, serving

CASES = text_cases()


@pytest.fixture(scope="session")
def wrong_decoder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with the decoder of a SentencePiece model."""
    copy = tmp_path_factory.mktemp("wrong") / "decoder"
    shutil.copytree(smollm2, copy, copy_function=lambda a, b: Path(b).symlink_to(a))
    tokenizer = json.loads((smollm2 / "tokenizer.json").read_text())
    tokenizer["decoder"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    (copy / "tokenizer.json").unlink()
    (copy / "tokenizer.json").write_text(json.dumps(tokenizer))
    return copy


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server a case asks for, by its model and flags."""
    name, flags = request.param
    if flags or name == "smollm2-wrong-decoder":
        path = request.getfixturevalue("wrong_decoder" if "wrong" in name else "smollm2")
        with serving(path, *flags) as own:
            yield own
    else:
        yield request.getfixturevalue("smollm2_server" if name == "smollm2" else "script_server")


async def whole(client: openai.AsyncOpenAI, body: dict[str, Any]) -> dict[str, Any]:
    answer = await create(client, body)
    choice = answer.choices[0]
    logprobs = choice.logprobs.content if choice.logprobs else None
    return {
        "content": choice.message.content,
        "finish_reason": choice.finish_reason,
        "completion_tokens": answer.usage.completion_tokens,
        "logprobs": len(logprobs or ()),
    }


async def streamed(client: openai.AsyncOpenAI, body: dict[str, Any], deltas: list[str]) -> dict[str, Any]:
    options = {"include_usage": True}
    chunks = [c async for c in await create(client, body, stream=True, stream_options=options)]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    deltas += [choice.delta.content for choice in choices if choice.delta.content]
    reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert len(reasons) == 1
    return {
        "content": "".join(deltas),
        "finish_reason": reasons[0],
        "completion_tokens": chunks[-1].usage.completion_tokens,
        "logprobs": sum(len(choice.logprobs.content or ()) for choice in choices if choice.logprobs),
    }


@pytest.mark.parametrize(
    ("server", "case"),
    [pytest.param((case["model"], tuple(case.get("flags", ()))), case, id=case["id"]) for case in CASES],
    indirect=["server"],
)
async def test_a_text_case_has_the_right_answer_in_every_mode(server: Server, case: dict[str, Any]) -> None:
    bodies = [{"model": "m", "temperature": 0, **request} for request in case["requests"]]
    async with server.async_openai() as client:
        solo = [await whole(client, body) for body in bodies]
        deltas: list[list[str]] = [[] for _ in bodies]
        assert [await streamed(client, body, own) for body, own in zip(bodies, deltas, strict=True)] == solo
        together = [streamed(client, body, []) for body in bodies] + [whole(client, body) for body in bodies]
        assert await asyncio.gather(*together) == solo * 2
    for index, found in enumerate(solo):
        check(case, bodies[index], found, deltas[index])
        if (right := case.get("contents", [None] * 9)[index]) is not None:
            assert found["content"] == right
        if "finish_reasons" in case:
            assert found["finish_reason"] == case["finish_reasons"][index]


def check(case: dict[str, Any], body: dict[str, Any], found: dict[str, Any], deltas: list[str]) -> None:
    """Each key of ``expect`` is one assertion."""
    content = found["content"]
    checks = {
        "no_replacement": lambda want: "\ufffd" not in content,
        "no_replacement_inside": lambda want: "\ufffd" not in "".join(deltas[:-1]) and "\ufffd" not in content[:-1],
        "starts_with": content.startswith,
        "forbidden": lambda want: not any(word in content for word in want),
        "finish_reason": lambda want: found["finish_reason"] == want,
        "finish_reason_one_of": lambda want: found["finish_reason"] in want,
        "completion_tokens_is_max": lambda want: found["completion_tokens"] == body["max_tokens"],
        "logprobs_is_completion_tokens": lambda want: found["logprobs"] == found["completion_tokens"],
        "text_chunks_at_most": lambda want: 1 < len(deltas) <= want,
        "newlines_at_least": lambda want: content.count("\n") >= want,
    }
    for name, want in case["expect"].items():
        assert checks[name](want), (name, want, found, deltas)
