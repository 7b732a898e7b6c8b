"""From flags, environment and file to settings."""

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from bramley.config.options import Help, Resolved, resolve
from bramley.config.settings import Dialect
from bramley.config.sources import environment
from bramley.domain.errors import StartupError

LINES = json.loads((Path(__file__).parent / "error_lines.json").read_text("utf-8"))
HOME = {"HOME": "/home/someone"}
SOURCES = ("flag", "environment", "file")


def settle(argv: Sequence[str], environ: Mapping[str, str] = HOME, dialect: Dialect = "bramley") -> Resolved:
    resolved = resolve(dialect, argv, {**HOME, **environ})
    assert isinstance(resolved, Resolved)
    return resolved


@pytest.mark.parametrize("given", [c for n in range(4) for c in itertools.combinations(SOURCES, n)], ids=str)
def test_a_flag_goes_before_the_environment_before_the_file_before_the_default(
    given: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "bramley.yaml"
    file.write_text("port: 3\n" if "file" in given else "")
    argv = ["--config", str(file), *(["--port", "1"] if "flag" in given else [])]
    resolved = settle(argv, {"BRAMLEY_PORT": "2"} if "environment" in given else {})
    port, origin = {
        "flag": (1, "flag"),
        "environment": (2, "environment BRAMLEY_PORT"),
        "file": (3, f"file {file}"),
        "default": (8000, "default"),
    }[given[0] if given else "default"]
    assert (resolved.settings.port, resolved.settings.origins["port"]) == (port, origin)


@pytest.mark.parametrize("case", LINES, ids=lambda case: case["name"])
def test_what_cannot_be_is_answered_with_one_line(case: dict[str, Any], tmp_path: Path) -> None:
    argv = list(case.get("argv", []))
    file = tmp_path / "bramley.yaml"
    if "yaml" in case:
        file.write_text(case["yaml"])
        argv += ["--config", str(file)]
    with pytest.raises(StartupError) as caught:
        resolve(case.get("dialect", "bramley"), argv, {**HOME, **case.get("env", {})})
    assert caught.value.message == case["line"].replace("FILE", str(file))


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["not text", "not there"])
@pytest.mark.parametrize("flag", ["--config", "--api-key-file"])
def test_a_file_that_cannot_be_read_is_named(flag: str, content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        settle([flag, str(file)])
    assert caught.value.message.startswith(f"{flag} {file}: ")
    assert "\n" not in caught.value.message


def test_keys_of_several_flags_and_of_a_file_all_count(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("three\n\nfour\none\n")
    resolved = settle(["--api-key", "one,two", "--api-key=-dash", "--api-key-file", str(file)])
    assert resolved.settings.api.api_keys == ("one", "two", "-dash", "three", "four")


def test_a_key_may_begin_with_a_dash() -> None:
    assert settle(["--api-key", "-secret"]).settings.api.api_keys == ("-secret",)


def test_keys_on_the_command_line_replace_those_of_the_environment() -> None:
    resolved = settle(["--api-key", "mine"], {"BRAMLEY_API_KEY": "theirs,others"})
    assert resolved.settings.api.api_keys == ("mine",)


def test_a_key_file_without_a_key_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("\n \n")
    with pytest.raises(StartupError, match="there is no key in it"):
        settle(["--api-key-file", str(file)])


@pytest.mark.parametrize("yaml", ["api_key: 12345", "api_key: [good, {bad: secret}]", "api_key: [secret, '']"])
def test_no_line_shows_a_key(yaml: str, tmp_path: Path) -> None:
    file = tmp_path / "bramley.yaml"
    file.write_text(yaml)
    with pytest.raises(StartupError) as caught:
        settle(["--config", str(file)])
    assert "secret" not in caught.value.message and "12345" not in caught.value.message


def test_the_file_of_options_may_be_named_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "bramley.yaml"
    file.write_text("served_model_name: [a, b]\nblas: off\ntimeout: 1e1\nmodel: ~/model\n")
    settings = settle([], {"BRAMLEY_CONFIG": str(file)}).settings
    assert settings.service.served_names == ("a", "b")
    assert settings.compute.blas == "off"
    assert settings.service.timeout_s == 10.0
    assert settings.model == str(Path.home() / "model")


def test_everything_lands_where_it_belongs() -> None:
    argv = ["a-model", "--host", "::1", "--max-tokens", "7", "--max-request-tokens", "9", "--default-top-p", "0.5"]
    argv += ["--default-temperature", "0", "--prefill-chunk", "64", "--context-length", "512", "--threads", "2"]
    argv += ["--stall-timeout", "5", "--shutdown-timeout", "0", "--stream-interval", "4", "--cache-dir", "/c"]
    settings = settle(argv).settings
    assert (settings.model, settings.host, settings.cache_dir, settings.shutdown_timeout_s) == (
        "a-model",
        "::1",
        "/c",
        0,
    )
    defaults = settings.service.defaults
    assert (defaults.max_tokens, defaults.max_request_tokens) == (7, 9)
    assert (defaults.top_p, defaults.temperature) == (0.5, 0.0)
    assert (settings.engine.prefill_chunk, settings.engine.context_length) == (64, 512)
    assert (settings.compute.threads, settings.supervisor.stall_s, settings.api.stream_interval) == (2, 5.0, 4)


def test_nothing_given_means_the_embedded_model_and_64_sequences() -> None:
    resolved = settle([])
    assert (resolved.settings.model, resolved.settings.engine.max_num_seqs) == ("", 64)
    assert resolved.settings.service.defaults.max_tokens is None
    assert resolved.notes == () and not resolved.check
    assert set(resolved.settings.origins.values()) == {"default"}


@pytest.mark.parametrize("dialect", ["bramley", "vllm-mlx"])
def test_help_is_text_and_no_start(dialect: Dialect) -> None:
    answer = resolve(dialect, ["--port", "1", "-h"], {})
    assert isinstance(answer, Help)
    assert answer.text.startswith(f"usage: {dialect} serve") and "--max-num-seqs N" in answer.text
    assert max(map(len, answer.text.splitlines())) <= 100


def test_words_after_two_dashes_are_no_flags() -> None:
    assert settle(["--", "--model"]).settings.model == "--model"


@pytest.mark.parametrize(
    ("argv", "most"),
    [
        ([], 1),
        (["--continuous-batching"], 256),
        (["--continuous-batching", "--no-continuous-batching"], 1),
        (["--continuous-batching", "--max-num-seqs", "8"], 8),
        (["--continuous-batching", "--max-num-seqs", "8", "--completion-batch-size", "4"], 4),
        (["--continuous-batching", "--max-num-seqs", "8", "--completion-batch-size", "32"], 8),
    ],
    ids=str,
)
def test_vllm_mlx_serves_one_at_a_time_unless_it_batches(argv: list[str], most: int) -> None:
    assert settle(["m", *argv], dialect="vllm-mlx").settings.engine.max_num_seqs == most


@pytest.mark.parametrize(
    ("argv", "chunk"),
    [
        ([], 0),
        (["--prefill-step-size", "512"], 512),
        (["--chunked-prefill-tokens", "256"], 256),
        (["--prefill-step-size", "512", "--chunked-prefill-tokens", "256"], 256),
        (["--prefill-step-size", "512", "--chunked-prefill-tokens", "0"], 512),
    ],
    ids=str,
)
def test_the_smaller_prefill_limit_counts(argv: list[str], chunk: int) -> None:
    assert settle(["m", *argv], dialect="vllm-mlx").settings.engine.prefill_chunk == chunk


def test_a_default_length_above_the_ceiling_is_lowered_and_said() -> None:
    resolved = settle(["m", "--max-request-tokens", "100"], dialect="vllm-mlx")
    assert resolved.settings.service.defaults.max_tokens == 100 and resolved.notes == ()
    resolved = settle(["--max-tokens", "200", "--max-request-tokens", "100"])
    assert resolved.settings.service.defaults.max_tokens == 100
    assert resolved.notes == ("--max-tokens 200 is above --max-request-tokens: 100 holds for both",)


def test_what_has_no_effect_is_noted() -> None:
    argv = ["m", "--prefill-batch-size", "4", "--rate-limit", "0", "--enable-mtp=false", "--max-num-seqs", "5"]
    notes = settle(argv, {"BRAMLEY_OFFLINE": "yes"}, "vllm-mlx").notes
    assert sorted(note.partition(" ")[0] for note in notes) == [
        "--enable-mtp", "--max-num-seqs", "--offline", "--prefill-batch-size", "--rate-limit",
    ]  # fmt: skip
    assert all("no effect" in note for note in notes)


def test_a_variable_that_looks_like_an_option_is_noted() -> None:
    notes = settle([], {"BRAMLEY_PROT": "1", "BRAMLEY_OFFLINE": "1", "OTHER": "1"}).notes
    assert notes == (
        "BRAMLEY_OFFLINE is set, but is an option of another command: ignored",
        "BRAMLEY_PROT is set, but is not an option: ignored (did you mean BRAMLEY_PORT?)",
    )


def test_the_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRAMLEY_PORT", "4711")
    assert environment()["BRAMLEY_PORT"] == "4711"
