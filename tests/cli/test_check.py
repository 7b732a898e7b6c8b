"""``serve --check`` on a model directory."""

import re
from pathlib import Path

import pytest

from bramley.cli.check import report
from bramley.config.options import Resolved, resolve
from bramley.config.settings import Dialect
from bramley.domain.errors import ModelLoadError
from tests.support.tiny_models import TINY_LLAMA, write_model


def checked(dialect: Dialect, argv: list[str], environ: dict[str, str], physical: int | None = None) -> str:
    resolved = resolve(dialect, [*argv, "--check"], {"HOME": "/home/someone", **environ})
    assert isinstance(resolved, Resolved) and resolved.check
    return report(resolved, physical=physical)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("model"), TINY_LLAMA))


def test_each_setting_is_shown_with_its_origin(model: str) -> None:
    text = checked("bramley", [model, "--port", "8001"], {"BRAMLEY_TIMEOUT": "12.5"})
    lines = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    assert ["model", model, "flag"] in lines
    assert ["port", "8001", "flag"] in lines
    assert ["timeout", "12.5", "environment BRAMLEY_TIMEOUT"] in lines
    assert ["max-num-seqs", "64", "default"] in lines
    assert ["cache-dir", "/home/someone/.cache/bramley", "default"] in lines


def test_keys_are_counted_and_not_shown(model: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("hush\n")
    text = checked("bramley", [model, "--api-key", "secret,silent", "--api-key-file", str(file)], {})
    assert re.search(r"api-key +2 keys +flag", text)
    assert not re.search("secret|silent|hush", text)


def test_what_has_no_effect_is_said_with_the_reason(model: str) -> None:
    text = checked("vllm-mlx", [model, "--disable-prefix-cache"], {})
    assert "--disable-prefix-cache has no effect: there is no prefix cache in this version" in text


def test_the_memory_plan_is_that_of_the_model(model: str) -> None:
    text = checked("bramley", [model, "--max-num-seqs", "4", "--dtype", "float32"], {}, physical=10**9)
    lines = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in text.splitlines() if "  " in line.strip())
    assert lines["keys and values"] == "512 bytes per token, at most"
    assert lines["context"] == "2,048 tokens"
    assert lines["one whole context"] == "1.0 MB"
    assert lines["sequences at once"] == "4"
    assert lines["physical memory"] == "1.0 GB"
    assert int(lines["whole contexts that fit"]) == pytest.approx(953, abs=2)
    assert "warning" not in text


def test_a_model_larger_than_memory_is_warned_of(model: str) -> None:
    assert "do not fit in memory" in checked("bramley", [model], {}, physical=1000)
    assert "not one whole context fits" in checked("bramley", [model], {}, physical=10**6)


def test_an_open_server_is_warned_of() -> None:
    assert "warning: 0.0.0.0 may be reached" in checked("bramley", ["--host", "0.0.0.0"], {})
    assert "may be reached" not in checked("bramley", ["--host", "0.0.0.0", "--api-key", "k"], {})


def test_the_embedded_model_needs_no_directory() -> None:
    text = checked("bramley", [], {})
    assert "the embedded model" in text and "134.5 million" in text


def test_a_model_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="does not exist"):
        checked("bramley", [str(tmp_path / "none")], {})
