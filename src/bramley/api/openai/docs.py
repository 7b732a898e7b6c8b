"""Writes docs/api-fields.md from the schema and ``fields``: ``python -m bramley.api.openai.docs [FILE]``."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from bramley.api.openai.fields import (
    ELSEWHERE,
    HONOURED,
    MESSAGE_REFUSED,
    MESSAGE_WITHOUT_EFFECT,
    REFUSED,
    WITHOUT_EFFECT,
)
from bramley.api.openai.schema import ChatBody, ChatMessage, CompletionBody

_HEAD = """\
# Request fields

This page is written from the code by `python -m bramley.api.openai.docs`. It says what becomes of every field of
`/v1/chat/completions` and `/v1/completions` that clients send. A field is honoured; or accepted without effect, where
a local server has nothing to do for it; or refused with a 400 that names it, because the answer would not be what was
asked for. null is the same as no field. Any other field is unknown: it is logged once by its name and has no effect,
or is refused when the server runs with `--strict-fields`.
"""

_CHAT = """\
## Chat messages

- Roles: `system`, `developer` (the same), `user`, `assistant`, `tool`, `function` (a tool's answer in the older form).
- `content` is a text, a list of text parts, or null. The parts' texts are joined with nothing between them.
- A template that refuses a system message, or the order of roles, is given plain turns: the system's words before the
  first user's, with an empty line between; neighbours of one role joined the same way. A template with no word for
  tools gets calls and results as text, in `<tool_call>` and `<tool_response>`. Only when that is refused too is the
  answer a 400 with the template's own words.
- A last message of the assistant with text is gone on with, and the answer holds only what is new, unless
  `continue_final_message` is false.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(
        [
            _HEAD,
            _table("Honoured", ("field", "chat", "completions", "how"), _honoured()),
            _table("Accepted without effect", ("field", "why"), sorted(WITHOUT_EFFECT.items())),
            _table("Refused", ("field", "but for these values, which change nothing"), _refused()),
            _CHAT,
            _table("Fields of a message", ("field", "what becomes of it"), _message()),
        ]
    )


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"## {title}", "", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| `{row[0]}` | {' | '.join(row[1:])} |" for row in rows), ""])


def _honoured() -> list[tuple[str, str, str, str]]:
    return [(name, _mark(name, ChatBody), _mark(name, CompletionBody), how) for name, how in sorted(HONOURED.items())]


def _mark(name: str, body: type[BaseModel]) -> str:
    if name in body.model_fields:
        return "yes"
    return f"400 unless {_values(ELSEWHERE[name])}" if ELSEWHERE[name] else "400"


def _refused() -> list[tuple[str, str]]:
    return [(name, _values(neutral) or "none") for name, neutral in sorted(REFUSED.items())]


def _values(values: Sequence[object]) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values)


def _message() -> list[tuple[str, str]]:
    rows = [(name, "honoured") for name in ChatMessage.model_fields]
    rows += [(name, "no effect") for name in MESSAGE_WITHOUT_EFFECT]
    return sorted([*rows, *((name, "refused") for name in MESSAGE_REFUSED)])


def main() -> int:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/api-fields.md")
    target.write_text(render(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
