"""Chat messages in, the model's own prompt text out: transformers' sandboxed rendering of the model's template."""

import inspect
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import Environment, TemplateError
from transformers import PreTrainedTokenizerBase

from bramley.domain.errors import InvalidRequest
from bramley.domain.messages import MediaPart, Message
from bramley.domain.requests import ChatPrompt
from bramley.domain.tools import Tool, ToolCall
from bramley.service.adapt import keeps_system, ways

# A template is a program of the model's author: these are what one can raise over input it does not expect.
_TEMPLATE_ERRORS = (
    TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
    MemoryError,
)  # fmt: skip
_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) | {"messages"}
# Unicode noncharacters, which no text carries: one that the messages do not hold marks where control words are cut.
_MARKS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
_MESSAGE_LENGTH = 400
# Parses only, and only with the extensions that transformers' own environment has for templates.
_PARSER = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)


class ChatTemplate:
    """Renders prompts for one model. Safe from several threads."""

    def __init__(self, backend: PreTrainedTokenizerBase, specials: Iterable[str]) -> None:
        """``specials`` are the texts of the control tokens."""
        self._backend = backend
        words = sorted((word for word in specials if len(word) > 1), key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, words))) if words else None

    @property
    def exists(self) -> bool:
        return bool(self._backend.chat_template)

    def check(self) -> None:
        """Raises TemplateSyntaxError when a template is no Jinja at all, whatever the messages."""
        found = self._backend.chat_template or ""
        for template in found.values() if isinstance(found, dict) else (found,):
            _PARSER.parse(template)

    def render(self, prompt: ChatPrompt) -> list[str]:
        """The prompt, cut inside every control word that a system, user or tool message spells out.

        Tokenized one by one and joined, the parts give the words as plain text, so that only the template opens and
        closes turns. An assistant's words are left whole: templates look for them. Raises InvalidRequest.
        """
        if not self.exists:
            raise InvalidRequest(
                "This model has no chat template, so it cannot take chat messages; use /v1/completions with a prompt.",
                param="messages",
            )
        if reserved := sorted(_RESERVED & prompt.template_kwargs.keys()):
            raise InvalidRequest(
                f"chat_template_kwargs may not set {', '.join(reserved)}.", param="chat_template_kwargs"
            )
        messages = shape_messages(prompt.messages)
        mark = self._cut_control_words(messages)
        text = self._adapted(messages, prompt)
        return text.split(mark) if mark else [text]

    def _adapted(self, messages: list[dict[str, Any]], prompt: ChatPrompt) -> str:
        """In the first way that the template takes and loses nothing of. Raises InvalidRequest."""
        refusal: Exception | None = None
        text = ""
        for way in ways(messages, self._source()):
            try:
                text = self._apply(way, prompt)
            except _TEMPLATE_ERRORS as error:
                refusal = refusal or error
                continue
            if keeps_system(way, text):
                return text
        if text:
            return text
        reason = " ".join(str(refusal).split())[:_MESSAGE_LENGTH].rstrip(".") or type(refusal).__name__
        raise InvalidRequest(
            f"The model's chat template does not take these messages: {reason}.", param="messages"
        ) from refusal

    def _apply(self, messages: list[dict[str, Any]], prompt: ChatPrompt) -> str:
        text = self._backend.apply_chat_template(
            messages,
            tools=[_shape_tool(tool) for tool in prompt.tools] or None,
            tokenize=False,
            add_generation_prompt=not prompt.continue_last,
            continue_final_message=prompt.continue_last,
            **prompt.template_kwargs,
        )
        return str(text)

    def _source(self) -> str:
        """The text of the template, or of all of a model that has several."""
        found = self._backend.chat_template or ""
        return "\n".join(found.values()) if isinstance(found, dict) else str(found)

    def _cut_control_words(self, messages: list[dict[str, Any]]) -> str:
        """Put a mark after the first character of each control word; empty when no message holds one."""
        control = self._control
        if control is None:
            return ""
        found = [
            message for message in messages if message["role"] != "assistant" and control.search(message["content"])
        ]
        if not found:
            return ""
        everything = "".join(message["content"] for message in messages)
        mark = next((mark for mark in _MARKS if mark not in everything), "")
        if not mark:
            raise InvalidRequest("The messages hold every Unicode noncharacter; remove them.", param="messages")
        for message in found:
            message["content"] = control.sub(lambda match: match[0][0] + mark + match[0][1:], message["content"])
        return mark


def shape_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """As templates read them: one system message, in front; content a string. Raises InvalidRequest for media."""
    system = [message for message in messages if message.role == "system"]
    shaped = [_shape_message(message) for message in messages if message.role != "system"]
    if system:
        texts = [_shape_message(message)["content"] for message in system]
        shaped.insert(0, {"role": "system", "content": "\n\n".join(texts)})
    return shaped


def _shape_message(message: Message) -> dict[str, Any]:
    for part in message.parts:
        if isinstance(part, MediaPart):
            raise InvalidRequest(f"This model reads text only; remove the {part.kind} part.", param="messages")
    shaped: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name is not None:
        shaped["name"] = message.name
    if message.reasoning is not None:
        shaped["reasoning_content"] = message.reasoning
    if message.tool_calls:
        shaped["tool_calls"] = [_shape_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        shaped["tool_call_id"] = message.tool_call_id
    return shaped


def _shape_call(call: ToolCall) -> dict[str, Any]:
    """Templates walk through the arguments as a mapping; what is not one stays text."""
    arguments: Any
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        arguments = call.arguments
    if not isinstance(arguments, dict):
        arguments = call.arguments
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _shape_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
