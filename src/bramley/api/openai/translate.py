"""OpenAI's request bodies in the domain's words."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bramley.api.openai.fields import FieldCheck
from bramley.api.openai.messages import read_message
from bramley.api.openai.schema import ChatBody, CompletionBody, GenerationBody
from bramley.domain.errors import InvalidRequest
from bramley.domain.messages import Message
from bramley.domain.requests import ChatPrompt, GenerationRequest, Priority, Prompt, TextPrompt, TokenPrompt
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


def chat_request(body: ChatBody, fields: FieldCheck, template_kwargs: Mapping[str, Any]) -> GenerationRequest:
    """``template_kwargs`` are the server's own, which the request's go before. Raises InvalidRequest."""
    fields.check(body.model_extra)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
    messages = tuple(read_message(message, f"messages[{i}]", fields) for i, message in enumerate(body.messages))
    kwargs = {**template_kwargs, **_template_kwargs(body)}
    prompt = ChatPrompt(messages, template_kwargs=kwargs, continue_last=_continues(body, messages[-1]))
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    [request] = _requests("chatcmpl-", body, [prompt], asked, logprobs)
    return request


def completion_requests(body: CompletionBody, fields: FieldCheck) -> list[GenerationRequest]:
    """One for each prompt. Raises InvalidRequest."""
    fields.check(body.model_extra)
    n = body.n or 1
    answers = body.best_of or n
    if answers < n:
        raise InvalidRequest(f"best_of ({answers}) must be at least n ({n}).", param="best_of")
    if answers > n and body.stream:
        raise InvalidRequest("best_of: which answers are best is known at their end; do not stream.", param="best_of")
    prompts = [TextPrompt(one) if isinstance(one, str) else TokenPrompt(tuple(one)) for one in body.prompt]
    # The likelihood of each answer has to be known to find the best.
    logprobs = 0 if answers > n and body.logprobs is None else body.logprobs
    found = _requests("cmpl-", body, prompts, body.max_tokens, logprobs)
    echo = bool(body.echo)
    prompt_logprobs = body.logprobs if echo else None
    return [
        msgspec.structs.replace(
            one,
            answers=answers,
            echo=echo,
            sampling=msgspec.structs.replace(one.sampling, prompt_logprobs=prompt_logprobs),
        )
        for one in found
    ]


def _template_kwargs(body: ChatBody) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        found["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            found["enable_thinking"] = False
    if body.enable_thinking is not None:
        found["enable_thinking"] = body.enable_thinking
    return {**found, **(body.chat_template_kwargs or {})}


def _continues(body: ChatBody, last: Message) -> bool:
    """Whether the model goes on with the last message: it does when that is the assistant's text, unless told not to.

    ``continue_final_message`` with ``add_generation_prompt`` is vLLM's way to say so.
    """
    can = last.role == "assistant" and bool(last.text) and not last.tool_calls
    wanted = body.continue_final_message
    if wanted and not can:
        raise InvalidRequest(
            "continue_final_message needs a last message with text of the assistant.", param="continue_final_message"
        )
    if wanted and body.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other.", param="add_generation_prompt"
        )
    goes_on = can and wanted is not False and body.add_generation_prompt is not True
    if body.add_generation_prompt is False and not goes_on:
        raise InvalidRequest(
            "add_generation_prompt may be false only where the last message is continued.",
            param="add_generation_prompt",
        )
    return goes_on


def _requests(
    prefix: str, body: GenerationBody, prompts: Sequence[Prompt], max_tokens: int | None, logprobs: int | None
) -> list[GenerationRequest]:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true.", param="stream_options")
    given = {name: value for field, name in SAMPLING.items() if (value := getattr(body, field)) is not None}
    if given.get("top_k") == -1:
        given["top_k"] = 0
    request = GenerationRequest(
        request_id=prefix + secrets.token_hex(16),
        model=body.model,
        prompt=prompts[0],
        answers=body.n or 1,
        sampling=Sampling(**given, logprobs=logprobs),
        sampling_given=frozenset(given),
        max_tokens=max_tokens,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        priority=PRIORITIES[body.priority or "normal"],
        timeout_s=body.timeout,
    )
    return [msgspec.structs.replace(request, prompt=prompt) for prompt in prompts]
