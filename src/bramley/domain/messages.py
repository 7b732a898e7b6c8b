"""A conversation, free of any protocol."""

from typing import Literal

import msgspec

from bramley.domain.tools import ToolCall

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class MediaPart(msgspec.Struct, frozen=True, tag="media"):
    """An image, a video or a sound: the bytes themselves, already fetched and checked."""

    kind: Literal["image", "video", "audio"]
    data: bytes
    mime_type: str = ""


Part = TextPart | MediaPart


class Message(msgspec.Struct, frozen=True):
    """One turn. ``reasoning`` is what an assistant thought earlier; its template decides whether it is shown."""

    role: Role
    parts: tuple[Part, ...] = ()
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))
