"""OpenAI's chat messages in the domain's words."""

import json
from typing import Any

from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.schema import ChatMessage, FunctionCall
from bramley.domain.errors import InvalidRequest
from bramley.domain.messages import Message, Role, TextPart
from bramley.domain.tools import ToolCall

MAX_PARTS = 4096
ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
# Part types with text, and where they have it.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def read_message(message: ChatMessage, place: str, fields: FieldCheck) -> Message:
    """The message at ``place``, as in "messages[0]". Raises InvalidRequest."""
    if message.role not in ROLES:
        raise InvalidRequest(f"{place}.role: {message.role[:50]!r} is unknown.", param=f"{place}.role")
    fields.check_message(message.model_extra, place)
    calls = _calls(message)
    if calls and message.role != "assistant":
        raise InvalidRequest(f"{place}.tool_calls: only an assistant calls tools.", param=f"{place}.tool_calls")
    return Message(
        role=ROLES[message.role],
        parts=_parts(message.content, f"{place}.content"),
        name=message.name,
        tool_calls=calls,
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning_content or message.reasoning,
    )


def _calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    """Calls made earlier, in the current form or in the older one of a single function."""
    calls = [(entry.id or "", entry.function) for entry in message.tool_calls or ()]
    if message.function_call is not None:
        calls.append(("", message.function_call))
    return tuple(ToolCall(call_id, function.name, _arguments(function)) for call_id, function in calls)


def _arguments(function: FunctionCall) -> str:
    arguments = function.arguments
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _parts(content: Any, place: str) -> tuple[TextPart, ...]:
    """A string, a list of text parts, or nothing."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise InvalidRequest(f"{place} must be a string or a list of parts.", param=place)
    if len(content) > MAX_PARTS:
        raise InvalidRequest(f"{place} has more than {MAX_PARTS} parts.", param=place)
    return tuple(_part(part, f"{place}[{i}]") for i, part in enumerate(content))


def _part(part: Any, place: str) -> TextPart:
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidRequest(f"{place} must be an object with a type.", param=place)
    if part["type"] not in _TEXTS:
        raise InvalidRequest(
            f"{place}: parts of type {part['type'][:50]!r} are not supported: this model reads text only.",
            param=f"{place}.type",
            code="unsupported_content",
        )
    field = _TEXTS[part["type"]]
    if not isinstance(part.get(field), str):
        raise InvalidRequest(f"{place}.{field} must be a string.", param=f"{place}.{field}")
    return TextPart(part[field])
