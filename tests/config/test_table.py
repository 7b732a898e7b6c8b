"""The option table: every row, from every source."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from bramley.config.kinds import Choice, Flag, Integer, Json, Number, Texts
from bramley.config.options import Resolved, resolve
from bramley.config.row import Option, Works
from bramley.config.settings import Settings
from bramley.config.sources import from_environment, from_file, from_flags
from bramley.config.table import OPTIONS, options_of


def sample(option: Option) -> tuple[str, Any]:
    """A fitting value of the row as text, and as the server should have it."""
    match option.kind:
        case Flag():
            return "true", True
        case Integer(low, _, _, only):
            value = only[0] if only else low + 1
            return str(value), value
        case Number():
            return "0.5", 0.5
        case Choice(names):
            return names[-1], names[-1]
        case Texts():
            return "one,two", ("one", "two")
        case Json():
            return '{"a": 1}', {"a": 1}
    return "some-text", "some-text"


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_a_row_is_read_from_every_source(option: Option, tmp_path: Path) -> None:
    text, value = sample(option)
    argv = [text] if option.positional else [option.flag] if isinstance(option.kind, Flag) else [option.flag, text]
    flags = from_flags([option], argv)
    assert flags is not None and flags[option.name].value == value
    variables, notes = from_environment([option], {option.variable: text}, ())
    assert variables[option.name].value == value and notes == []
    file = tmp_path / "options.yaml"
    file.write_text(yaml.safe_dump({option.key: list(value) if isinstance(value, tuple) else value}))
    if option.group == "Command":
        return
    found = from_file([option], str(file))
    assert found[option.name].value == value and found[option.name].origin == f"file {file}"


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.negatable], ids=lambda option: option.name)
def test_a_switch_can_be_taken_back(option: Option) -> None:
    flags = from_flags([option], [option.flag, f"--no-{option.name}"])
    assert flags is not None and flags[option.name].value is False


def test_no_two_rows_share_a_name() -> None:
    assert [name for name, count in Counter(option.name for option in OPTIONS).items() if count > 1] == []


@pytest.mark.parametrize("dialect", ["bramley", "vllm-mlx"])
def test_no_two_flags_of_a_command_are_the_same(dialect: Any) -> None:
    flags = [o.flag for o in options_of(dialect)] + [f"--no-{o.name}" for o in options_of(dialect) if o.negatable]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("option", [o for o in OPTIONS if o.to], ids=lambda option: option.name)
def test_a_row_lands_in_a_field_of_the_settings(option: Option) -> None:
    node: Any = Settings()
    for part in option.to.split("."):
        node = getattr(node, part)


@pytest.mark.parametrize("option", [o for o in OPTIONS if not isinstance(o.status, Works)], ids=lambda o: o.name)
def test_a_row_without_effect_lands_nowhere(option: Option) -> None:
    assert option.to == ""


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_defaults_fit_their_own_kind(option: Option) -> None:
    for dialect in option.dialects:
        default = option.default_in(dialect)
        if default not in (None, (), ""):
            assert option.kind.accept(list(default) if isinstance(default, tuple) else default) == default


@pytest.mark.parametrize("dialect", ["bramley", "vllm-mlx"])
def test_defaults_of_a_command_are_those_the_settings_have(dialect: Any) -> None:
    resolved = resolve(dialect, ["m"], {"HOME": "/h"})
    assert isinstance(resolved, Resolved)
    for option in options_of(dialect):
        node: Any = resolved.settings
        for part in filter(None, option.to.split(".")):
            node = getattr(node, part)
        if option.to and option.name != "model":
            assert node == resolved.values[option.name]
