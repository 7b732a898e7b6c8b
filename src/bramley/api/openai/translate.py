"""OpenAI's request bodies in the domain's words."""

import secrets
from typing import Any

from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.schema import ChatBody, ChatMessage, CompletionBody, GenerationBody
from bramley.domain.errors import InvalidRequest
from bramley.domain.messages import Message, Role, TextPart
from bramley.domain.requests import ChatPrompt, GenerationRequest, Priority, Prompt, TextPrompt
from bramley.domain.sampling import Sampling

# Request fields that are parameters of the draw, with their names in the domain.
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "repetition_penalty": "repetition_penalty",
    "repetition_context_size": "repetition_context",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "min_tokens": "min_tokens",
    "ignore_eos": "ignore_eos",
    "seed": "seed",
}
# mlx-openai-server's word for the lowest class is "low".
PRIORITIES: dict[str, Priority] = {"high": "high", "normal": "normal", "low": "batch", "batch": "batch"}
MAX_PARTS = 4096
ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def chat_request(body: ChatBody, fields: FieldCheck) -> GenerationRequest:
    """Raises InvalidRequest."""
    fields.check(body.model_extra)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    messages = tuple(_message(message, f"messages[{i}]", fields) for i, message in enumerate(body.messages))
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _request("chatcmpl-", body, ChatPrompt(messages), asked, logprobs)


def completion_request(body: CompletionBody, fields: FieldCheck) -> GenerationRequest:
    """Raises InvalidRequest."""
    fields.check(body.model_extra)
    if not isinstance(body.prompt, str):
        raise InvalidRequest("prompt must be a string; lists are not supported by this server yet.", param="prompt")
    return _request("cmpl-", body, TextPrompt(body.prompt), body.max_tokens, body.logprobs)


def _request(
    prefix: str, body: GenerationBody, prompt: Prompt, max_tokens: int | None, logprobs: int | None
) -> GenerationRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    given = {name: value for field, name in SAMPLING.items() if (value := getattr(body, field)) is not None}
    if given.get("top_k") == -1:
        given["top_k"] = 0
    return GenerationRequest(
        request_id=prefix + secrets.token_hex(16),
        model=body.model,
        prompt=prompt,
        sampling=Sampling(**given, logprobs=logprobs),
        sampling_given=frozenset(given),
        max_tokens=max_tokens,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        priority=PRIORITIES[body.priority or "normal"],
    )


def _message(message: ChatMessage, place: str, fields: FieldCheck) -> Message:
    if message.role not in ROLES:
        what = "is not supported by this server yet" if message.role in ("tool", "function") else "is unknown"
        raise InvalidRequest(f"{place}.role: {message.role[:50]!r} {what}.", param=f"{place}.role")
    for name in ("tool_calls", "function_call", "audio"):
        if (message.model_extra or {}).get(name):
            raise InvalidRequest(f"{place}.{name} is not supported by this server yet.", param=f"{place}.{name}")
    return Message(
        role=ROLES[message.role],
        parts=_parts(message.content, f"{place}.content"),
        name=message.name,
        reasoning=message.reasoning_content or message.reasoning,
    )


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
    if part["type"] not in ("text", "input_text", "output_text"):
        raise InvalidRequest(
            f"{place}: parts of type {part['type'][:50]!r} are not supported: this model reads text only.",
            param=f"{place}.type",
            code="unsupported_content",
        )
    if not isinstance(part.get("text"), str):
        raise InvalidRequest(f"{place}.text must be a string.", param=f"{place}.text")
    return TextPart(part["text"])
