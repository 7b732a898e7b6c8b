"""The script model says its scripts, and nothing else."""

import json
from pathlib import Path

import mlx.core as mx
import pytest
from mlx_lm import load, stream_generate
from mlx_lm.sample_utils import make_sampler

from tests.support.script_model import (
    EOS,
    SCRIPTS,
    Script,
    ScriptTokenizer,
    Special,
    build,
    load_scripts,
    main,
    parse_script,
    start_word,
)

ALL = load_scripts()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ScriptTokenizer]:
    path = tmp_path_factory.mktemp("script-model")
    return path, build(path)


def test_the_next_token_of_every_script_is_certain_at_any_temperature(made: tuple[Path, ScriptTokenizer]) -> None:
    path, tokenizer = made
    model, _ = load(str(path))
    # The others, a character a token, have the same texts and take four times as long.
    for script in (script for script in ALL if not script.name.endswith("-c")):
        ids = tokenizer.ids[script.name]
        following = [*ids, ids[0] if script.loop else tokenizer.id(EOS)]
        logits = model(mx.array([[tokenizer.id(start_word(script.name)), *ids]]))[0]
        for temperature in (1.0, 2.0):
            chances = mx.softmax(logits / temperature, axis=-1)
            sure = mx.take_along_axis(chances, mx.array(following)[:, None], axis=-1)
            assert mx.all(sure > 1 - 1e-5).item(), script.name


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["B1", "A1-emoji", "special", "A8-c", "loop"])
def test_mlx_lm_replays_a_script_named_by_the_last_user_message(
    made: tuple[Path, ScriptTokenizer], name: str, temperature: float
) -> None:
    path, tokenizer = made
    model, text = load(str(path))
    messages = [
        {"role": "user", "content": "B7"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": name},
    ]
    prompt = text.apply_chat_template(messages, add_generation_prompt=True)
    found = [
        step.token for step in stream_generate(model, text, prompt, max_tokens=40, sampler=make_sampler(temperature))
    ]
    ids = tokenizer.ids[name]
    if name == "loop":
        assert found == [ids[index % len(ids)] for index in range(40)]
    else:
        assert found == [*ids, tokenizer.id(EOS)]


def test_the_shared_file_has_the_scripts_the_tests_of_servers_name() -> None:
    names = {script.name for script in ALL}
    assert len(names) == len(ALL) >= 57
    assert {"A8-w", "A8-c", "B4-w", "C2-x", "loop", "long"} <= names
    assert len(next(script for script in ALL if script.name == "long").pieces) == 400


def test_an_unknown_script_is_an_empty_answer(made: tuple[Path, ScriptTokenizer]) -> None:
    path, tokenizer = made
    model, text = load(str(path))
    prompt = text.apply_chat_template([{"role": "user", "content": "no such script"}], add_generation_prompt=True)
    assert [step.token for step in stream_generate(model, text, prompt, max_tokens=5)] == [tokenizer.id(EOS)]


def test_text_stands_for_a_whole_and_a_split_script_and_repeat_for_a_long_one() -> None:
    assert parse_script("x", {"text": "hé"}) == [Script("x-w", ("hé".encode(),)), Script("x-c", (b"h", "é".encode()))]
    assert parse_script("x", {"pieces": ["a", [200]], "repeat": 2, "loop": True}) == [
        Script("x", (b"a", b"\xc8", b"a", b"\xc8"), loop=True)
    ]
    assert parse_script("x", [{"special": "<|y|>"}, "z"]) == [Script("x", (Special("<|y|>"), b"z"))]


def test_a_control_token_may_stand_in_one_place_only(tmp_path: Path) -> None:
    scripts = [Script("a", (Special("<|y|>"), b"1")), Script("b", (Special("<|y|>"), b"2"))]
    with pytest.raises(ValueError, match="'b'"):
        build(tmp_path, scripts)


def test_the_command_builds_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scripts.json"
    file.write_text(json.dumps({"one": ["a", "b"]}))
    for name in ("first", "second"):
        monkeypatch.setattr("sys.argv", ["script_model", str(tmp_path / name), "--scripts", str(file)])
        main()
    for made in sorted((tmp_path / "first").iterdir()):
        assert made.read_bytes() == (tmp_path / "second" / made.name).read_bytes()
    assert SCRIPTS.is_file()
