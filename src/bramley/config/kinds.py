"""Types of option values: what a text (flag, environment) or a YAML value may be, in words for the error line.

``parse`` reads text and ``accept`` a value YAML has already typed. Both raise ``ValueError`` when it does not fit;
the caller says whose value it was.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Protocol

_INTEGER = re.compile(r"[+-]?[0-9]+")


class Kind(Protocol):
    """``wanted`` ends the sentence "must be ...". ``metavar`` empty: the flag takes no value."""

    @property
    def metavar(self) -> str: ...

    @property
    def wanted(self) -> str: ...

    def parse(self, text: str) -> Any: ...

    def accept(self, value: Any) -> Any: ...


# What fits every message and every array; nobody wants more of anything.
_MOST = (1 << 31) - 1


@dataclass(frozen=True)
class Integer:
    """``only`` not empty: nothing else is taken."""

    low: int
    high: int = _MOST
    metavar: str = "N"
    only: tuple[int, ...] = ()

    @property
    def wanted(self) -> str:
        if self.only:
            return f"one of {', '.join(map(str, self.only))}"
        return f"a whole number {_span(self.low, None if self.high == _MOST else self.high)}"

    def parse(self, text: str) -> int:
        # int() alone also takes "8_000", other scripts' digits and blanks.
        if not _INTEGER.fullmatch(text):
            raise ValueError
        return self.accept(int(text))

    def accept(self, value: Any) -> int:
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError
        if value < self.low or (self.high is not None and value > self.high) or (self.only and value not in self.only):
            raise ValueError
        return value


@dataclass(frozen=True)
class Number:
    """``above`` excludes ``low`` itself."""

    low: float
    high: float | None = None
    above: bool = False
    metavar: str = "X"

    @property
    def wanted(self) -> str:
        if not self.above:
            return f"a number {_span(self.low, self.high)}"
        return f"a number above {self.low:g}" + ("" if self.high is None else f" and at most {self.high:g}")

    def parse(self, text: str) -> float:
        # float() alone also takes "1_0" and other scripts' digits.
        if "_" in text or not text.isascii():
            raise ValueError
        return self.accept(float(text))

    def accept(self, value: Any) -> float:
        # YAML reads 1e-1 as text.
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError
        if value < self.low or (self.above and value == self.low) or (self.high is not None and value > self.high):
            raise ValueError
        return float(value)


@dataclass(frozen=True)
class Text:
    metavar: str = "TEXT"
    wanted: str = "text that is not empty (in quotes where YAML would read a number or a date)"

    def parse(self, text: str) -> str:
        return self.accept(text)

    def accept(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value


@dataclass(frozen=True)
class Path:
    """A path of the file system; ``~`` is expanded, as no shell does it for YAML and the environment."""

    metavar: str = "PATH"
    wanted: str = "a path"

    def parse(self, text: str) -> str:
        return self.accept(text)

    def accept(self, value: Any) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        try:
            return str(FilePath(value).expanduser()) if value.startswith("~") else value
        except RuntimeError as error:
            raise ValueError from error


@dataclass(frozen=True)
class Choice:
    names: tuple[str, ...]

    @property
    def metavar(self) -> str:
        return "|".join(self.names) if len(self.names) <= 5 else "NAME"

    @property
    def wanted(self) -> str:
        return f"one of {', '.join(self.names)}"

    def parse(self, text: str) -> str:
        return self.accept(text)

    def accept(self, value: Any) -> str:
        # YAML 1.1 reads a bare off as false.
        if value is False and "off" in self.names:
            return "off"
        if value not in self.names:
            raise ValueError
        return str(value)


@dataclass(frozen=True)
class Flag:
    """True or false. ``negatable``: there is a ``--no-NAME`` too."""

    negatable: bool = False
    metavar: str = ""
    wanted: str = "true or false"

    def parse(self, text: str) -> bool:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise ValueError

    def accept(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value


@dataclass(frozen=True)
class Json:
    """A JSON object as text; in YAML also a mapping."""

    metavar: str = "JSON"
    wanted: str = "a JSON object"

    def parse(self, text: str) -> dict[str, Any]:
        try:
            return self.accept(json.loads(text))
        except RecursionError as error:
            raise ValueError from error

    def accept(self, value: Any) -> dict[str, Any]:
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise ValueError
        return value


@dataclass(frozen=True)
class Texts:
    """Several texts: comma-separated in text, a list in YAML. A flag may be given several times."""

    metavar: str = "TEXT"
    wanted: str = "one text or several, with commas between (in YAML a list of quoted texts), none of them empty"

    def parse(self, text: str) -> tuple[str, ...]:
        return self.accept([part.strip() for part in text.split(",")])

    def accept(self, value: Any) -> tuple[str, ...]:
        if isinstance(value, str):
            return self.parse(value)
        if not isinstance(value, list) or not value:
            raise ValueError
        if any(not isinstance(part, str) or not part.strip() for part in value):
            raise ValueError
        return tuple(value)


def _span(low: float, high: float | None) -> str:
    return f"from {low:g} up" if high is None else f"from {low:g} to {high:g}"
