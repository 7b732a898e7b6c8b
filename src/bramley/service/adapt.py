"""Messages for templates that know less than clients send: the same words, in turns that the template takes."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

# As most models that call tools are trained to write them.
_CALL = "<tool_call>\n{}\n</tool_call>"
_RESULT = "<tool_response>\n{}\n</tool_response>"
_JOINT = "\n\n"

Shaped = list[dict[str, Any]]


def ways(messages: Shaped, source: str) -> Iterator[Shaped]:
    """The messages as they are, or nearly, then in plainer turns, for a template with this ``source``.

    Calls and their results are text where the template has no word for them: it would leave them out.
    """
    first = [_spelled(message, source) for message in messages]
    yield first
    yield _plain(first)


def keeps_system(messages: Shaped, text: str) -> bool:
    """Whether the system message is in the rendered ``text``; some templates drop it without a word."""
    return all(message["content"].strip() in text for message in messages if message["role"] == "system")


def _spelled(message: dict[str, Any], source: str) -> dict[str, Any]:
    if message.get("tool_calls") and "tool_calls" not in source:
        calls = [_CALL.format(json.dumps(_call(call), ensure_ascii=False)) for call in message["tool_calls"]]
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**rest, "content": "\n".join(part for part in (message["content"], *calls) if part)}
    if message["role"] == "tool" and "tool" not in source:
        return {"role": "user", "content": _RESULT.format(message["content"])}
    return message


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def _plain(messages: Sequence[dict[str, Any]]) -> Shaped:
    """User and assistant in turn, the user first: the system's words before the first user's, neighbours joined."""
    merged: Shaped = []
    for message in messages:
        turn = {**message, "role": "user"} if message["role"] == "system" else dict(message)
        if merged and merged[-1]["role"] == turn["role"] and turn["role"] != "tool":
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    if merged and merged[0]["role"] != "user":
        merged.insert(0, {"role": "user", "content": ""})
    return merged


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    content = _JOINT.join(part for part in (one["content"], other["content"]) if part)
    calls = [*one.get("tool_calls", ()), *other.get("tool_calls", ())]
    return {**one, **other, "content": content, **({"tool_calls": calls} if calls else {})}
