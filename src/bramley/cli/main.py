"""The programs ``bramley``, ``vllm-mlx`` and ``mlx-openai-server``: finds a command and runs it.

A command is a module with ``run(dialect: str, argv: list[str]) -> int``, which returns the exit code. The tables hold
names of modules, so that ``--help`` loads none of them: not the web framework, not transformers.

Exit codes: 0 done, 1 a command failed with one line on stderr, 2 used wrongly, 130 interrupted.
"""

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast

from bramley import __version__
from bramley.domain.errors import BramleyError


class Command(NamedTuple):
    """``target`` is ``module:function``; ``summary`` is its line in the list of commands."""

    target: str
    summary: str


class Run(Protocol):
    def __call__(self, dialect: str, argv: list[str]) -> int: ...


class Program(NamedTuple):
    """One entry point. ``later`` are the commands its users know that this version does not have."""

    name: str
    commands: Mapping[str, Command]
    later: tuple[str, ...] = ()


SERVE = Command("bramley.cli.serve:run", "serve a model over HTTP")

BRAMLEY = Program("bramley", MappingProxyType({"serve": SERVE}))
VLLM_MLX = Program("vllm-mlx", MappingProxyType({"serve": SERVE}))
MLX_OPENAI_SERVER = Program("mlx-openai-server", MappingProxyType({}), later=("launch",))


def bramley() -> int:
    return main(BRAMLEY, sys.argv[1:])


def vllm_mlx() -> int:
    return main(VLLM_MLX, sys.argv[1:])


def mlx_openai_server() -> int:
    return main(MLX_OPENAI_SERVER, sys.argv[1:])


def main(program: Program, argv: list[str]) -> int:
    """Runs the command that ``argv`` names and returns the exit code."""
    first = argv[0] if argv else ""
    if first in ("", "-h", "--help", "help"):
        sys.stdout.write(usage(program))
        return 0 if argv else 2
    if first in ("-V", "--version"):
        sys.stdout.write(f"{program.name} {__version__}\n")
        return 0
    if first not in program.commands:
        sys.stderr.write(refusal(program, first))
        return 2
    try:
        return load(program.commands[first].target)(program.name, argv[1:])
    except BramleyError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def load(target: str) -> Run:
    module, _, function = target.partition(":")
    return cast(Run, getattr(import_module(module), function))


def usage(program: Program) -> str:
    lines = [f"usage: {program.name} COMMAND [OPTION ...]", ""]
    lines += [f"  {name:<10} {command.summary}" for name, command in program.commands.items()]
    lines += [f"  {name:<10} comes with a later version; use: bramley serve" for name in program.later]
    lines += [
        "",
        "  --version  print the version",
        "  --help     print this text; after a command: its options",
    ]
    return "\n".join(lines) + "\n"


def refusal(program: Program, word: str) -> str:
    if program.later:
        return f"error: {program.name} {word}: comes with a later version of Bramley; until then use: bramley serve\n"
    known = ", ".join(program.commands)
    return f"error: {program.name} has no command {word!r}; it has: {known}\n"
