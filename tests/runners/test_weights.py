"""Loading a model directory: types, quantization, progress, and everything that can be wrong with it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx.nn.layers.linear import Linear
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_model

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import Phase
from bramley.runners import weights
from bramley.runners.weights import load_text_model
from tests.support.tiny_models import TINY_LLAMA, write_model

BROKEN = json.loads((Path(__file__).parent / "broken_models.json").read_text())
TOKENS = mx.array([[1, 7, 300, 42, 9]])
TINY_MIXTRAL = TINY_LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}


def silent(phase: Phase, done: float, total: float, note: str) -> None:
    pass


def arrays(model: Any) -> list[mx.array]:
    return [array for _, array in cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))]


def dtypes(model: Any) -> set[str]:
    return {str(array.dtype).removeprefix("mlx.core.") for array in arrays(model)}


def nbytes(model: Any) -> int:
    return sum(array.nbytes for array in arrays(model))


def store(model: Any, config: dict[str, Any], path: Path) -> Path:
    path.mkdir()
    save_model(path, model, donate_model=False)
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("llama") / "model", TINY_LLAMA)


@pytest.fixture
def model_dir(llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama, tmp_path / "model"))


def narrow(source: Path, path: Path, width: mx.Dtype) -> Path:
    model, config = load_model(source)
    model.set_dtype(width)
    return store(model, config, path)


def quantize(source: Path, path: Path, bits: int = 4, mode: str = "affine") -> Path:
    model, config = load_model(source)
    quantized, config = quantize_model(model, config, 32, bits, mode=mode)
    return store(quantized, config, path)


def test_sixteen_bit_weights_become_float32_on_a_cpu(llama: Path, tmp_path: Path) -> None:
    path = narrow(llama, tmp_path / "narrow", mx.bfloat16)
    model, _, notes = load_text_model(path, "auto", silent)
    stored, _ = load_model(path)
    assert dtypes(stored) == {"bfloat16"} and dtypes(model) == {"float32"}
    assert notes == ("21 weights were converted to float32.",)
    stored.set_dtype(mx.float32)
    assert mx.array_equal(model(TOKENS), stored(TOKENS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_type_asked_for_wins(llama: Path, dtype: str) -> None:
    assert dtypes(load_text_model(llama, dtype, silent).model) == {dtype}


@pytest.mark.parametrize(("bits", "mode"), [(4, "affine"), (8, "affine"), (4, "mxfp4")])
def test_quantized_layers_become_plain_ones_that_compute_the_same(
    llama: Path, tmp_path: Path, bits: int, mode: str
) -> None:
    path = quantize(llama, tmp_path / "quantized", bits, mode)
    model, _, notes = load_text_model(path, "auto", silent)
    stored, _ = load_model(path)
    assert "uint32" in dtypes(stored) and dtypes(model) == {"float32"}
    assert notes[0].startswith("16 quantized layers were converted")
    assert mx.allclose(model(TOKENS), stored(TOKENS), rtol=1e-3, atol=1e-3)


def test_layers_of_experts_become_plain_ones_too(tmp_path: Path) -> None:
    path = quantize(write_model(tmp_path / "model", TINY_MIXTRAL), tmp_path / "quantized")
    model, _, _ = load_text_model(path, "auto", silent)
    stored, _ = load_model(path)
    assert dtypes(model) == {"float32"}
    assert mx.allclose(model(TOKENS), stored(TOKENS), rtol=1e-3, atol=1e-3)


def test_a_bias_stays_with_its_layer(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", TINY_LLAMA | {"attention_bias": True})
    model, _, _ = load_text_model(quantize(path, tmp_path / "quantized"), "auto", silent)
    layer = model.layers[0].self_attn.q_proj
    assert type(layer) is Linear and mx.array_equal(layer.bias, load_model(path)[0].layers[0].self_attn.q_proj.bias)


def test_weights_too_large_for_float32_stay_as_stored_and_a_note_says_so(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = quantize(llama, tmp_path / "quantized")
    stored = nbytes(load_model(path)[0])
    monkeypatch.setattr(weights, "usable_memory", lambda: stored + 1000)
    model, _, notes = load_text_model(path, "auto", silent)
    assert "uint32" in dtypes(model)
    assert len(notes) == 1 and "so they stay as stored" in notes[0]
    with pytest.raises(ModelLoadError, match=r"float32 weights take .* start without --dtype"):
        load_text_model(path, "float32", silent)


def test_weights_too_large_for_the_machine_are_refused_before_they_are_loaded(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "usable_memory", lambda: 1000)
    with pytest.raises(ModelLoadError, match=r"take 0\.0 GB, more than the 0\.0 GB this machine can hold"):
        load_text_model(llama, "auto", silent)


def test_progress_is_in_bytes_and_ends_at_the_whole(smollm2: Path) -> None:
    reports: list[tuple[Phase, float, float]] = []
    model = load_text_model(
        smollm2, "auto", lambda phase, done, total, note: reports.append((phase, done, total))
    ).model
    total = nbytes(model)
    assert reports == sorted(reports) and len(reports) > 5
    assert {(phase, whole) for phase, _, whole in reports} == {("loading", total)}
    assert reports[0][1] == 0 and reports[-1][1] == total


def test_ends_of_turn_are_those_of_both_files(model_dir: Path) -> None:
    (model_dir / "generation_config.json").write_text('{"eos_token_id": [5, 2, 7]}')
    assert load_text_model(model_dir, "auto", silent).config["eos_token_id"] == [2, 5, 7]
    (model_dir / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert load_text_model(model_dir, "auto", silent).config["eos_token_id"] == [2, 9]


def test_a_directory_s_own_code_never_runs(model_dir: Path) -> None:
    ran = model_dir / "ran"
    code = f"import pathlib\npathlib.Path({str(ran)!r}).touch()\nfrom mlx_lm.models.llama import Model, ModelArgs\n"
    for name in ("evil.py", "configuration_evil.py", "modeling_evil.py"):
        (model_dir / name).write_text(code)
    config = json.loads((model_dir / "config.json").read_text())
    automatic = {"auto_map": {"AutoConfig": "configuration_evil.E", "AutoModelForCausalLM": "modeling_evil.E"}}
    (model_dir / "config.json").write_text(json.dumps(config | automatic))
    load_text_model(model_dir, "auto", silent)
    (model_dir / "config.json").write_text(json.dumps(config | {"model_file": "evil.py"}))
    with pytest.raises(ModelLoadError, match="its own code"):
        load_text_model(model_dir, "auto", silent)
    assert not ran.exists()


@pytest.mark.parametrize("case", BROKEN, ids=[case["name"] for case in BROKEN])
def test_what_is_broken_ends_in_one_sentence(model_dir: Path, case: dict[str, Any]) -> None:
    for change in case["change"]:
        break_it(model_dir, *change)
    with pytest.raises(ModelLoadError, match=case["said"]) as caught:
        load_text_model(model_dir, "auto", silent)
    message = caught.value.message
    assert message.endswith(".") and "\n" not in message and len(message) < 600 and "Traceback" not in message


def break_it(directory: Path, verb: str, name: str, value: Any = None) -> None:
    """One entry of ``change`` in broken_models.json. A merged null takes a field away."""
    path = directory / name
    match verb:
        case "remove" if path.is_dir():
            shutil.rmtree(path)
        case "remove":
            path.unlink()
        case "truncate":
            os.truncate(path, value)
        case "write":
            path.write_text(value)
        case "bytes":
            path.write_bytes(bytes.fromhex(value))
        case "merge":
            merged = json.loads(path.read_text()) | value
            path.write_text(json.dumps({key: item for key, item in merged.items() if item is not None}))
        case _:
            raise ValueError(verb)
