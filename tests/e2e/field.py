"""The field cases' data: what went wrong elsewhere, and the right value here."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data" / "field"


def case(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DATA / "server.json").read_text())[name]
    return found


def text_cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / "text.json").read_text())
    return found
