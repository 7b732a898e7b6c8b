"""Which runner serves which kind of model.

A runner is a file in this folder that says ``KIND = "..."`` at its top and has a function ``create() -> Runner``. The
files are found by reading them, and only the one that is needed is imported: each brings its own MLX packages.
"""

import ast
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from bramley.runners.base import Runner

Registry = Mapping[str, Callable[[], Runner]]

_PACKAGE = "bramley.runners"


def discover(folder: Path = Path(__file__).parent) -> Registry:
    """Kind -> function that makes its runner, importing its file on the first call."""
    modules = {kind: path.stem for path in sorted(folder.glob("*.py")) if (kind := _declared_kind(path)) is not None}
    return {kind: partial(_create, f"{_PACKAGE}.{module}") for kind, module in modules.items()}


def _declared_kind(path: Path) -> str | None:
    """The value of a top-level ``KIND = "..."`` in a source file."""
    for node in ast.parse(path.read_bytes()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="KIND")], value=ast.Constant(value=str(kind))):
                return kind
    return None


def _create(module: str) -> Runner:
    runner: Runner = importlib.import_module(module).create()
    return runner
