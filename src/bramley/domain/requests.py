"""What a protocol asks of the service, in no protocol's words."""

from typing import Any, Literal

import msgspec

from bramley.domain.messages import Message
from bramley.domain.sampling import Sampling
from bramley.domain.tools import Tool, ToolChoice

Priority = Literal["high", "normal", "batch"]


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages to be rendered by the model's own template.

    ``continue_last`` leaves the last assistant message open, so that the model goes on writing it.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    template_kwargs: dict[str, Any] = {}
    continue_last: bool = False


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    """Plain text, tokenized with the model's own beginning-of-text token and no template."""

    text: str


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the output. ``source`` is JSON Schema text, a regular expression, or a Lark grammar."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark"]
    source: str = ""


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to be generated to one prompt. ``max_tokens`` None: as much as the server and the context allow.

    ``answers`` is how many; of a request with a seed each but the first has a seed of its own. ``echo`` puts the prompt
    in front of each, with its log-probabilities where the sampling asks for those. ``stop`` are strings that end the
    answer and are not part of it. ``timeout_s`` is how long there may be no progress. ``sampling_given`` names the
    fields of ``sampling`` that the client set: the others may take a default.
    """

    request_id: str
    model: str
    prompt: Prompt
    answers: int = 1
    echo: bool = False
    sampling: Sampling = Sampling()
    sampling_given: frozenset[str] = frozenset()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    grammar: Grammar | None = None
    priority: Priority = "normal"
    cache_salt: str = ""
    use_cache: bool = True
    thinking_budget: int | None = None
    timeout_s: float | None = None
