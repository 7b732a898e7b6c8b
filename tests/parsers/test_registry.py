"""Families are found by looking into a folder."""

from collections.abc import Iterator
from pathlib import Path
from sys import modules

import pytest

from bramley.domain.errors import StartupError
from bramley.parsers.registry import REASONING, TOOLS, Registry

FAMILY = """
NAME = {name!r}
ALIASES = {aliases!r}

def matches(template, vocabulary):
    return {word!r} in template or {word!r} in vocabulary

def create():
    raise NotImplementedError
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "families_for_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "helper.py").write_text("SHARED = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in modules if name.startswith(folder.name)]:
        del modules[name]


def write(folder: Path, name: str, aliases: tuple[str, ...] = (), word: str = "") -> None:
    (folder / f"{name}.py").write_text(FAMILY.format(name=name, aliases=aliases, word=word or f"<{name}>"))


def test_every_file_with_a_name_is_a_family(package: Path) -> None:
    write(package, "hermes", ("qwen", "nous"))
    write(package, "mistral")
    registry = Registry.scan(package.name)
    assert registry.names == ("hermes", "mistral", "nous", "qwen")
    assert registry.find("qwen") is registry.find("hermes")


def test_a_family_is_recognised_by_template_or_vocabulary(package: Path) -> None:
    write(package, "hermes", word="<tool_call>")
    write(package, "mistral", word="[TOOL_CALLS]")
    registry = Registry.scan(package.name)
    assert registry.detect("... <tool_call> ...", {}) is registry.find("hermes")
    assert registry.detect("", {"[TOOL_CALLS]": 5}) is registry.find("mistral")
    assert registry.detect("plain", {"a": 1}) is None


def test_an_unknown_name_is_refused_with_the_names_there_are(package: Path) -> None:
    write(package, "hermes")
    with pytest.raises(StartupError, match=r"'nope'.*hermes"):
        Registry.scan(package.name).find("nope")


def test_two_families_may_not_share_a_name(package: Path) -> None:
    write(package, "hermes", ("qwen",))
    write(package, "other", ("qwen",))
    with pytest.raises(ValueError, match="'qwen'"):
        Registry.scan(package.name)


@pytest.mark.parametrize("folder", [TOOLS, REASONING])
def test_the_folders_of_the_project_can_be_scanned(folder: str) -> None:
    registry = Registry.scan(folder)
    assert len(registry.names) >= len(registry.families)
