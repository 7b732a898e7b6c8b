"""One row of the option table, and what may be said about the feature behind it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bramley.config.kinds import Flag, Kind, Texts
from bramley.config.settings import Dialect

BRAMLEY: Dialect = "bramley"
VLLM_MLX: Dialect = "vllm-mlx"

Group = Literal["Model", "Server", "Access", "Generation", "Scheduling", "Computing", "Features", "Command"]
GROUPS: tuple[Group, ...] = (
    "Model", "Server", "Access", "Generation", "Scheduling", "Computing", "Features", "Command",
)  # fmt: skip


@dataclass(frozen=True)
class Works:
    """The value is used."""


@dataclass(frozen=True)
class NoEffect:
    """The value is accepted and changes nothing, because of ``reason`` (a sentence without its full stop)."""

    reason: str


@dataclass(frozen=True)
class NotYet:
    """``feature`` is not in this version: a value other than ``neutral`` (None: the default) stops the start."""

    feature: str
    neutral: Any = None


@dataclass(frozen=True)
class Refused:
    """Not planned, because of ``reason``: a value other than the default stops the start."""

    reason: str


Status = Works | NoEffect | NotYet | Refused


@dataclass(frozen=True)
class Option:
    """An option: ``--name``, ``BRAMLEY_NAME`` and the YAML key ``name`` (with underscores).

    ``to`` is the dotted path in ``Settings`` the value lands in; empty where a rule in ``config.rules`` combines it
    with others. ``default`` None: not given; ``unlike`` holds the defaults of commands that differ.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    to: str = ""
    status: Status = Works()
    group: Group = "Features"
    dialects: tuple[Dialect, ...] = (BRAMLEY, VLLM_MLX)
    unlike: Mapping[Dialect, Any] = field(default_factory=dict)
    required: tuple[Dialect, ...] = ()
    positional: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        return self.name.upper() if self.positional else f"--{self.name}"

    @property
    def variable(self) -> str:
        return f"BRAMLEY_{self.key.upper()}"

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def repeats(self) -> bool:
        return isinstance(self.kind, Texts)

    @property
    def negatable(self) -> bool:
        return isinstance(self.kind, Flag) and self.kind.negatable

    def default_in(self, dialect: Dialect) -> Any:
        return self.unlike.get(dialect, self.default)

    def shown(self, value: Any) -> str:
        """``value`` for people; a secret is counted, never shown."""
        if self.secret and value:
            return f"{len(value)} key" + ("s" if len(value) > 1 else "")
        if value is None or value in ((), "", {}):
            return "none"
        if isinstance(value, dict):
            return json.dumps(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return ", ".join(value)
        return f"{value:g}" if isinstance(value, float) else str(value)
