"""The limits of docs/structure.md that no linter checks: sizes, module state, what a command may load."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "bench", "scripts")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
HEAVY = {
    "mlx", "mlx_lm", "numpy", "fastapi", "starlette", "pydantic", "uvicorn", "transformers", "tokenizers", "jinja2",
}  # fmt: skip
KIND = re.compile(r"^KIND\b.* = ", re.MULTILINE)
MUTABLE = {"list", "dict", "set", "bytearray", "deque", "defaultdict", "OrderedDict", "Counter"}
WRITERS = {
    "append", "extend", "insert", "remove", "pop", "popitem", "clear", "add", "discard", "update", "setdefault", "sort",
}  # fmt: skip
# What Python itself, its tools and pytest's plugins read from a module.
READ_BY_TOOLS = {"__all__", "pytestmark", "pytest_plugins"}


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    return ((name, ast.parse(text, name)) for name, text in sources(*folders))


def test_no_file_is_longer_than_500_lines() -> None:
    lengths = {name: text.count("\n") for name, text in sources(*FOLDERS)}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_60_lines() -> None:
    too_long = {
        f"{name}:{node.lineno} {node.name}": lines
        for name, tree in modules(*FOLDERS)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_no_module_holds_mutable_state() -> None:
    """A table written out in full is a constant, as long as its module never writes to it. Anything else is state."""
    found = [
        f"{name}:{statement.lineno}"
        for name, tree in modules("src")
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and not names_of(statement) & READ_BY_TOOLS
        and (is_state(statement.value) or (is_table(statement.value) and names_of(statement) & names_written_to(tree)))
    ]
    assert found == [], "write the table out, make it a tuple or frozenset, or give the state to an object"


def is_table(value: ast.expr | None) -> bool:
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def is_state(value: ast.expr | None) -> bool:
    """An empty collection, or one made by a call, is there to be filled."""
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name in MUTABLE
    return (isinstance(value, ast.List) and not value.elts) or (isinstance(value, ast.Dict) and not value.keys)


def names_written_to(tree: ast.Module) -> set[str]:
    """Names of which an item is set or deleted, or a method that changes a collection is called."""
    written = [
        node.value
        for node in ast.walk(tree)
        if (isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Attribute) and node.attr in WRITERS)
    ]
    return {value.id for value in written if isinstance(value, ast.Name)}


def names_of(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_nothing_imports_a_runner() -> None:
    """A module that declares a KIND is found by the registry; what runners share is in modules without one."""
    runners = {
        path.stem for path in (ROOT / "src/bramley/runners").glob("*.py") if KIND.search(path.read_text("utf-8"))
    }
    imports = [
        f"{name}:{node.lineno}"
        for name, tree in modules("src")
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and {f"bramley.runners.{runner}" for runner in runners} & imported_by(node)
    ]
    assert runners
    assert imports == []


def imported_by(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}


def test_no_marker_of_unfinished_work_is_left() -> None:
    words = tuple(f"# {word}" for word in ("TODO", "FIXME", "XXX", "HACK"))
    assert [name for name, text in sources(*FOLDERS) if any(word in text for word in words)] == []


@pytest.mark.parametrize(
    "arguments",
    [
        "bramley --help",
        "bramley --version",
        "bramley serve --help",
        "vllm_mlx --help",
        "vllm_mlx serve --help",
        "mlx_openai_server --help",
    ],
)
def test_help_loads_no_framework(arguments: str) -> None:
    program, *argv = arguments.split()
    script = f"""
import sys
from bramley.cli.main import {program}
sys.argv[1:] = {argv!r}
try:
    code = {program}()
except SystemExit as end:
    code = end.code
print("loaded:", *sorted({{name.partition(".")[0] for name in sys.modules}} & {HEAVY!r}))
sys.exit(code)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 1 or argv == ["--version"]
    assert done.stdout.splitlines()[-1] == "loaded:"
