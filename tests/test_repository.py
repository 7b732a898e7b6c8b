"""What the repository promises beside its code: a clean tree, true documents, complete pins."""

import ast
import fnmatch
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bramley

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CORE: list[str] = PROJECT["project"]["dependencies"]
EXTRAS: list[str] = [row for rows in PROJECT["project"].get("optional-dependencies", {}).values() for row in rows]
# Needed by another dependency at run time, or found by it when it is there; docs/dependencies.md says by which.
NOT_IMPORTED = {"httptools"}
IMPORT_NAMES = {"pyyaml": "yaml"}
# Half of a package in a distribution of its own, always of the fitting version.
HALVES = {"pydantic_core"}
PINS = ("run", "dev", "model", "uv")
LOCAL = "|".join(
    [
        r"/(?:work|farm|root)/",  # somebody's folders
        r"/tmp/[a-z]+/",
        r"https?://[a-z0-9.-]+/(?:simple|packages)/",  # package registries
        r"//registry[.]",
        r"pypi[.]org|pythonhosted[.]org",
        r"--(?:extra-)?index-url|--find-links",
    ]
)
# Switches these off by name.
EXCEPTIONS = {("scripts/lock.sh", "--no-emit-index-url --no-emit-find-links")}


def files() -> Iterator[Path]:
    """The tree as a clone would have it: everything .gitignore does not name."""
    ignored = [".git", *(line.rstrip("/") for line in read(".gitignore").split())]
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not matches(name, ignored)]
        yield from (Path(folder) / name for name in names if not matches(name, ignored))


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """Normalised names, as in the name rules of packaging: lower case, ``-`` for runs of ``-_.``."""
    found = (re.match(r"[A-Za-z0-9._-]+", line) for line in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in found if name}


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for path in files():
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if name == "tests/test_repository.py" or any(name == file and text in line for file, text in EXCEPTIONS):
                continue
            if re.search(LOCAL, line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []


def test_no_lock_file_is_kept() -> None:
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pylock.toml"}
    assert [path for path in files() if path.name in locks] == []


def test_readme_begins_with_the_two_commands() -> None:
    commands = re.findall(r"^(?:\$ )?make ([a-z]+)", read("README.md"), flags=re.MULTILINE)
    assert commands[:2] == ["serve", "test"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_a_page_names_exists(page: str) -> None:
    assert set(re.findall(r"\bmake ([a-z]+)(?=[`\s])", read(page))) <= targets()


def test_every_relative_link_of_a_page_leads_somewhere() -> None:
    pages = [path for path in files() if path.suffix == ".md"]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()] == []


def test_every_dependency_is_documented() -> None:
    documented = set(re.findall(r"^\| `([^`]+)` \|", read("docs/dependencies.md"), flags=re.MULTILINE))
    assert names(CORE + EXTRAS) - documented == set()


def test_the_code_imports_what_is_declared_and_declares_what_it_imports() -> None:
    roots = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                roots |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots.add((node.module or "").partition(".")[0])
    declared = {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names(CORE + EXTRAS)}
    assert roots - set(sys.stdlib_module_names) - {"bramley"} - HALVES == declared - NOT_IMPORTED


@pytest.mark.parametrize("name", PINS)
def test_every_requirement_is_pinned_with_hashes(name: str) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", "\n" + re.sub(r"^ *#.*\n", "", read(f"requirements/{name}.txt"), flags=re.M))
    assert [
        entry for entry in entries if entry.strip() and not re.match(r"\S+==\S+.*\\\n +--hash=sha256:", entry)
    ] == []


def test_serving_and_testing_use_the_same_versions() -> None:
    pins = {
        name: set(re.findall(r"^\S+==\S+", read(f"requirements/{name}.txt"), flags=re.M)) for name in ("run", "dev")
    }
    assert pins["run"] <= pins["dev"]


def test_every_core_dependency_is_pinned() -> None:
    assert names(CORE) <= names(read("requirements/run.txt").splitlines())


def test_the_changelog_knows_this_version() -> None:
    headings = re.findall(r"^## (\S+)", read("CHANGELOG.md"), flags=re.MULTILINE)
    assert bramley.__version__ in headings or "Unreleased" in headings[:1]


def test_ci_calls_what_a_user_calls() -> None:
    assert "make test" in read(".ci/run")
    assert all("make test" in read(f".github/workflows/{system}.yml") for system in ("linux", "macos"))
