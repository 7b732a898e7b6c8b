"""Tools a model may call, and the calls it makes."""

from typing import Any, Literal

import msgspec


class Tool(msgspec.Struct, frozen=True):
    """A function the client offers. ``parameters`` is its JSON Schema, in the order the client sent."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolChoice(msgspec.Struct, frozen=True):
    mode: Literal["auto", "none", "required", "named"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class ToolCall(msgspec.Struct, frozen=True):
    """A finished call. ``arguments`` is the JSON text as the model wrote it."""

    call_id: str
    name: str
    arguments: str
