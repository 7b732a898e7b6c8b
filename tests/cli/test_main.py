"""The entry points as a user types them."""

import subprocess
import sys
from collections.abc import Mapping
from types import MappingProxyType

import pytest

import bramley
from bramley.cli.main import BRAMLEY, MLX_OPENAI_SERVER, VLLM_MLX, Command, Program, main
from bramley.domain.errors import ModelLoadError

PROGRAMS = (BRAMLEY, VLLM_MLX, MLX_OPENAI_SERVER)


def table(target: str) -> Mapping[str, Command]:
    return MappingProxyType({"go": Command(f"{__name__}:{target}", "for tests")})


def fails(dialect: str, argv: list[str]) -> int:
    raise ModelLoadError(f"{dialect} cannot load {argv[0]}.")


def is_interrupted(dialect: str, argv: list[str]) -> int:
    raise KeyboardInterrupt


def counts(dialect: str, argv: list[str]) -> int:
    return len(argv)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_version_names_the_program(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(program, ["--version"]) == 0
    assert capsys.readouterr().out == f"{program.name} {bramley.__version__}\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_help_lists_the_commands(program: Program, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(program, ["--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in (*program.commands, *program.later))


def test_nothing_typed_prints_the_help_and_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BRAMLEY, []) == 2
    assert "usage: bramley" in capsys.readouterr().out


def test_an_unknown_command_is_answered_with_one_line_that_lists_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BRAMLEY, ["sreve"]) == 2
    assert capsys.readouterr().err == "error: bramley has no command 'sreve'; it has: serve\n"


@pytest.mark.parametrize("argv", [["launch"], ["launch", "--model-path", "somewhere"], ["--model-path", "somewhere"]])
def test_mlx_openai_server_refuses_with_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(MLX_OPENAI_SERVER, argv) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "later version" in said and "bramley serve" in said


def test_a_command_gets_the_name_of_its_program_and_its_own_arguments() -> None:
    assert main(Program("some-name", table("counts")), ["go", "a", "--b"]) == 2


def test_a_known_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Program("some-name", table("fails")), ["go", "it"]) == 1
    assert capsys.readouterr().err == "error: some-name cannot load it.\n"


def test_an_interrupt_is_exit_code_130() -> None:
    assert main(Program("some-name", table("is_interrupted")), ["go"]) == 130


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "bramley", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"bramley {bramley.__version__}\n")
