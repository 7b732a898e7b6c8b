"""Request bodies. Shape and ranges only; what a field means is in ``translate``, what else may come in ``fields``."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic_core import PydanticCustomError

MAX_LOGPROBS = 20
MAX_STOPS = 64
MAX_STOP_LENGTH = 1000
MAX_MESSAGES = 16_384
MAX_BIASES = 1024
MAX_ANSWERS = 16
MAX_CALLS = 1024
MAX_PROMPTS = 1024

Tokens = Annotated[int, Field(ge=1, le=1 << 31)]


def _stops(value: Any) -> Any:
    """One string, or a list of them. One error for all of it: a union would report each of its branches."""
    stops = [value] if isinstance(value, str) else value
    if stops is not None and not (
        isinstance(stops, list)
        and len(stops) <= MAX_STOPS
        and all(isinstance(stop, str) and 0 < len(stop) <= MAX_STOP_LENGTH for stop in stops)
    ):
        wanted = f"must be a string or a list of up to {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters"
        raise PydanticCustomError("stop", wanted)
    return stops


def _bias(value: Any) -> Any:
    """Token ids are JSON keys, hence text; values from -100 to 100."""
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > MAX_BIASES:
        raise PydanticCustomError("bias", f"must be an object of up to {MAX_BIASES} token ids")
    for token, addend in value.items():
        if not (isinstance(token, str) and token.isdecimal() and token.isascii() and len(token) < 10):
            raise PydanticCustomError("bias", "must have token ids as its keys")
        if isinstance(addend, bool) or not isinstance(addend, int | float) or not -100 <= addend <= 100:
            raise PydanticCustomError("bias", "must have numbers from -100 to 100 as its values")
    return {int(token): float(addend) for token, addend in value.items()}


def _prompts(value: Any) -> Any:
    """A text, token ids, or a list of either: always as the list of prompts."""
    prompts = value if isinstance(value, list) and not _is_ids(value) else [value]
    if not 0 < len(prompts) <= MAX_PROMPTS or not all(isinstance(one, str) or _is_ids(one) for one in prompts):
        wanted = f"must be a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either"
        raise PydanticCustomError("prompt", wanted)
    return prompts


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int and 0 <= one < 1 << 31 for one in value)


TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Bias = Annotated[dict[int, float] | None, BeforeValidator(_bias, json_schema_input_type=dict[str, float] | None)]
Prompts = Annotated[
    list[str | list[int]],
    BeforeValidator(_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
]
Stops = Annotated[list[str] | None, BeforeValidator(_stops, json_schema_input_type=list[str] | str | None)]


class Body(BaseModel):
    """Strict: "1" is no number and 1 is no boolean. Other fields are kept for ``fields.check``."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Body):
    """What chat and completions have in common."""

    model: Annotated[str, Field(max_length=256)] = "default"
    max_tokens: Tokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = None
    stop: Stops = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=0.5)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repetition_context_size: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Bias = None
    min_tokens: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOPS)] | None = None
    priority: Literal["high", "normal", "low", "batch"] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    timeout: Annotated[float, Field(gt=0)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class FunctionCall(Body):
    """``arguments``: JSON text, or the object itself as some clients send it."""

    name: str
    arguments: str | dict[str, Any] = "{}"


class CallEntry(Body):
    id: str | None = None
    type: str | None = None
    function: FunctionCall


class ChatMessage(Body):
    role: str
    content: Any = None
    name: str | None = None
    tool_calls: Annotated[list[CallEntry], Field(max_length=MAX_CALLS)] | None = None
    function_call: FunctionCall | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES), FailFast()]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Prompts
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
