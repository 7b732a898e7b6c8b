"""Loads a model directory with mlx-lm's model definitions, in the type the device computes best in.

Nothing in the directory is ever executed: a model that needs its own Python file is refused.
"""

import importlib.util
import json
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import MODEL_REMAPPING, load_model

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import Phase
from bramley.runners.base import is_out_of_memory
from bramley.runners.facts import eos_token_ids, text_config
from bramley.runners.memory import usable_memory
from bramley.runners.tensorfile import read_entries

Report = Callable[[Phase, float, float, str], None]

_PIECE_BYTES: Final = 64_000_000
_REASON_CHARACTERS: Final = 300
_DTYPES: Final = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
# what model definitions raise when a configuration or weights are not what they expect
_MISFIT: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class LoadedModel(NamedTuple):
    """``config`` is config.json, its ``eos_token_id`` the list of all that end a turn. ``notes`` are for the log."""

    model: Module
    config: dict[str, Any]
    notes: tuple[str, ...]


def load_text_model(path: Path, dtype: str, report: Report) -> LoadedModel:
    """Load the language model in the directory ``path``, its weights in memory.

    ``dtype`` auto: on a GPU as stored; on CPU float32, quantized layers dequantized, if that fits in memory (MLX
    computes anything else many times slower there). float32, float16, bfloat16: that type for all floating weights;
    on a GPU quantized layers stay quantized. ``report`` is called on this thread with bytes done and in all. Raises
    ModelLoadError with one sentence, and what MLX raises when memory runs out.
    """
    config = _read_config(path)
    _check_files(path)
    try:
        model, config = load_model(path, lazy=True)
    except _MISFIT as error:
        if is_out_of_memory(error):
            raise
        raise ModelLoadError(
            f"The model in {path} does not fit mlx-lm's definition of {config['model_type']}: {_reason(error)}."
        ) from error
    generation = _read_json(path / "generation_config.json") if (path / "generation_config.json").exists() else {}
    config["eos_token_id"] = list(eos_token_ids((_read_config(path), text_config(config), generation)))
    notes = _apply(model, dtype, path)
    _materialize(model, path.name, report)
    return LoadedModel(model, config, tuple(notes))


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelLoadError(f"There is no model directory {path}.")
    if not (path / "config.json").exists():
        raise ModelLoadError(f"{path} is not a model directory: it has no config.json.")
    config = _read_json(path / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelLoadError(f"{path / 'config.json'} does not say its model_type.")
    if config.get("model_file") is not None:
        raise ModelLoadError(
            f"The model in {path} asks to run its own code ({config['model_file']}), which Bramley never does."
        )
    module = MODEL_REMAPPING.get(model_type, model_type)
    if not re.fullmatch(r"\w+", module) or importlib.util.find_spec(f"mlx_lm.models.{module}") is None:
        raise ModelLoadError(f"The model in {path} is of the type {model_type[:50]}, which mlx-lm does not support.")
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {_reason(error)}.") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} does not hold a JSON object.")
    return value


def _check_files(path: Path) -> None:
    """Every file of weights is there and whole. MLX would say so late, or not at all."""
    files = sorted(path.glob("model*.safetensors"))
    index = path / "model.safetensors.index.json"
    if index.exists():
        weight_map = _read_json(index).get("weight_map")
        named = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        files = sorted({*files, *(path / name for name in named if isinstance(name, str))})
    if not files:
        raise ModelLoadError(f"{path} has no weights: there is no file model*.safetensors in it.")
    for file in files:
        read_entries(file)


def _apply(model: Module, dtype: str, path: Path) -> list[str]:
    """Change the model's lazy weights to what they are to be in memory; nothing is computed yet."""
    on_cpu = mx.default_device().type != mx.DeviceType.gpu
    room, stored = usable_memory(), _bytes(model)
    if stored > room:
        raise ModelLoadError(
            f"The weights in {path} take {_gigabytes(stored)}, more than the {_gigabytes(room)} this machine can hold."
        )
    target = "float32" if dtype == "auto" and on_cpu else dtype
    if target == "auto":
        return []
    width = _DTYPES[target]
    needed = _bytes(model, width, dense=on_cpu)
    # what nobody asked for must leave room for the caches of sequences too
    limit = room * 5 // 6 if dtype == "auto" else room
    if needed > max(limit, stored):
        text = f"{target} weights take {_gigabytes(needed)}, more than the {_gigabytes(limit)} there is for them"
        if dtype != "auto":
            raise ModelLoadError(f"{text}: start without --dtype.")
        return [f"{text}, so they stay as stored, which a CPU computes much slower."]
    notes = _dequantize(model, width) if on_cpu else []
    changed = _cast(model, width)
    if changed:
        notes.append(f"{changed} weights were converted to {target}.")
    return notes


def _bytes(model: Module, width: mx.Dtype | None = None, dense: bool = False) -> int:
    """What the weights take: as they are, or with floats in ``width``; ``dense`` counts quantized ones unpacked."""
    total = 0
    for _, module in _modules(model):
        own = [(name, array) for name, array in module.items() if isinstance(array, mx.array)]
        if dense and _plain_layer(module) is not None and width is not None:
            total += module["weight"].size * 32 // module.bits * width.size
            own = [(name, array) for name, array in own if name == "bias"]
        floats = width.size if width is not None else 0
        total += sum(
            array.size * floats if floats and mx.issubdtype(array.dtype, mx.floating) else array.nbytes
            for _, array in own
        )
    return total


def _plain_layer(module: Module) -> Module | None:
    """A layer that computes what this quantized one does, its weight still to be set; None for any other layer."""
    makers: dict[type[Module], Callable[[], Module]] = {
        QuantizedLinear: lambda: Linear(1, 1, bias=False),
        QuantizedEmbedding: lambda: Embedding(1, 1),
        QuantizedSwitchLinear: lambda: SwitchLinear(1, 1, 1, bias=False),
    }
    maker = makers.get(type(module))
    return maker() if maker is not None else None


def _dequantize(model: Module, width: mx.Dtype) -> list[str]:
    """Put plain layers in place of quantized ones; those of kinds it does not know stay, and are noted."""
    dense, kept = [], 0
    for name, module in _modules(model):
        layer = _plain_layer(module)
        if layer is None:
            kept += "scales" in module
            continue
        layer.weight = _unpacked(module, width)
        if "bias" in module:
            layer.bias = module.bias
        dense.append((name, layer))
    if dense:
        model.update_modules(tree_unflatten(dense))
    notes = []
    if dense:
        notes.append(f"{len(dense)} quantized layers were converted to plain ones, which a CPU computes faster.")
    if kept:
        notes.append(f"{kept} layers of other quantized kinds stay as they are.")
    return notes


def _unpacked(module: Module, width: mx.Dtype) -> mx.array:
    """Computed in float32 where the mode's scales are floats, so that nothing is rounded before the end."""
    scales, biases = module["scales"], module.get("biases")
    if mx.issubdtype(scales.dtype, mx.floating):
        scales = scales.astype(mx.float32)
        biases = biases.astype(mx.float32) if biases is not None else None
    weight = mx.dequantize(
        module["weight"],
        scales,
        biases,
        group_size=module.group_size,
        bits=module.bits,
        mode=module.mode,
        global_scale=module.get("global_scale"),
    )
    return weight.astype(width)


def _cast(model: Module, width: mx.Dtype) -> int:
    """Convert floating weights; how many there were. A narrow type spares those the definition wants left alone."""
    spares = getattr(model, "cast_predicate", None) if width != mx.float32 else None
    changed = []
    for name, array in _named(model):
        wanted = mx.issubdtype(array.dtype, mx.floating) and array.dtype != width
        if wanted and (spares is None or spares(name)):
            changed.append((name, array.astype(width)))
    if changed:
        model.update(tree_unflatten(changed))
    return len(changed)


# mlx.nn's methods carry no types, hence Any
def _modules(model: Any) -> list[tuple[str, Module]]:
    return list(model.named_modules())


def _named(model: Any) -> list[tuple[str, mx.array]]:
    return list(cast(Iterable[tuple[str, mx.array]], tree_flatten(model.parameters())))


def _materialize(model: Module, name: str, report: Report) -> None:
    """Compute all weights, some at a time, so that memory holds few of them twice and progress can be seen."""
    arrays = [array for _, array in _named(model)]
    total, done = sum(array.nbytes for array in arrays), 0
    report("loading", 0.0, float(total), name)
    for piece in _pieces(arrays):
        mx.eval(piece)
        mx.clear_cache()
        done += sum(array.nbytes for array in piece)
        report("loading", float(done), float(total), name)


def _pieces(arrays: Sequence[mx.array]) -> Iterable[list[mx.array]]:
    piece: list[mx.array] = []
    for array in arrays:
        piece.append(array)
        if sum(each.nbytes for each in piece) >= _PIECE_BYTES:
            yield piece
            piece = []
    if piece:
        yield piece


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _reason(error: BaseException) -> str:
    """An error's text on one line, without its end if that is long: it can list every weight of a model."""
    text = " ".join(str(error).split()).rstrip(".")
    return text if len(text) <= _REASON_CHARACTERS else text[:_REASON_CHARACTERS] + " ..."
