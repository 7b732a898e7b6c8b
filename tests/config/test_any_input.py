"""Whatever is typed, set or written, the answer is settings, help, or one line."""

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from bramley.config.options import resolve
from bramley.config.table import OPTIONS
from bramley.domain.errors import StartupError

NAMES = st.sampled_from([option.name for option in OPTIONS if option.name not in ("config", "api-key-file")])
TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["8000", "-1", "0.5", "1e9", "nan", "auto", "off", "~x", "--", "-h", "--a\nb"]),
)
WORDS = st.one_of(TEXT, NAMES.map("--{}".format), NAMES.map("--no-{}".format), st.builds("--{}={}".format, NAMES, TEXT))
LEAVES = st.one_of(TEXT, st.integers(), st.booleans(), st.floats(), st.none(), st.lists(TEXT, max_size=3), st.dates())
TREES = st.one_of(
    LEAVES, st.dictionaries(st.one_of(NAMES, LEAVES.filter(lambda leaf: not isinstance(leaf, list))), LEAVES)
)
DIALECTS = st.sampled_from(["bramley", "vllm-mlx"])


def settles(dialect: str, argv: list[str], environ: dict[str, str]) -> None:
    try:
        resolve(dialect, argv, {"HOME": "/home/someone", **environ})  # type: ignore[arg-type]
    except StartupError as error:
        assert error.message and "\n" not in error.message


@settings(max_examples=60, deadline=None)
@given(DIALECTS, st.lists(WORDS, max_size=6))
def test_any_command_line_settles(dialect: str, argv: list[str]) -> None:
    settles(dialect, argv, {})


@settings(max_examples=60, deadline=None)
@given(DIALECTS, st.dictionaries(NAMES.map(lambda name: f"BRAMLEY_{name.replace('-', '_').upper()}"), TEXT, max_size=4))
def test_any_environment_settles(dialect: str, environ: dict[str, str]) -> None:
    settles(dialect, ["m"], environ)


@settings(max_examples=60, deadline=None)
@given(DIALECTS, st.one_of(st.binary(max_size=40), TREES.map(lambda tree: yaml.safe_dump(tree).encode())))
def test_any_file_settles(dialect: str, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "options.yaml"
        file.write_bytes(content)
        settles(dialect, ["m", "--config", str(file)], {})
