"""How many tokens an answer may have."""

from bramley.domain.errors import ContextExceeded, InvalidRequest
from bramley.domain.requests import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from bramley.service.options import GenerationDefaults

UNKNOWN_CONTEXT_ANSWER = 32_768


def check_length(prompt: Prompt, longest_token: int, context_length: int) -> None:
    """Raises ContextExceeded for a text that has more tokens than the context however it is tokenized.

    Tokenizing it to know how many would keep a thread for minutes.
    """
    match prompt:
        case TextPrompt():
            length = len(prompt.text)
        case ChatPrompt():
            length = sum(len(message.text) for message in prompt.messages)
        case TokenPrompt():
            return
    if context_length and length > context_length * longest_token:
        raise ContextExceeded(
            f"The prompt has {length} characters, which are more than the {context_length} tokens of the model's "
            "context length. Shorten the prompt.",
            param="messages" if isinstance(prompt, ChatPrompt) else "prompt",
        )


def answer_tokens(prompt_tokens: int, asked: int | None, context_length: int, defaults: GenerationDefaults) -> int:
    """The answer's limit in tokens, at least 1. ``context_length`` 0 means the model does not say.

    An explicit wish that cannot be met is refused; without one the answer may fill what is left of the context.
    Raises InvalidRequest, ContextExceeded.
    """
    ceiling = defaults.max_request_tokens
    if asked is not None and ceiling is not None and asked > ceiling:
        raise InvalidRequest(f"max_tokens exceeds server limit ({ceiling})", param="max_tokens")
    if context_length and prompt_tokens >= context_length:
        raise ContextExceeded(
            f"The prompt has {prompt_tokens} tokens, but the model's context length is {context_length} tokens and "
            "must hold the answer too. Shorten the prompt.",
            param="messages",
        )
    if asked is None:
        room = context_length - prompt_tokens if context_length else UNKNOWN_CONTEXT_ANSWER
        return min(room, *(limit for limit in (defaults.max_tokens, ceiling) if limit is not None), room)
    if context_length and prompt_tokens + asked > context_length:
        raise ContextExceeded(
            f"The model's context length is {context_length} tokens, but the request asks for "
            f"{prompt_tokens + asked}: {prompt_tokens} of the prompt and {asked} of max_tokens.",
            param="max_tokens",
        )
    return asked
