"""Converts the embedded model's GGUF file into a model directory, once per form and version."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import mlx.core as mx

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import Phase
from bramley.runners.embedded import package
from bramley.runners.embedded.directory import build_once
from bramley.runners.embedded.gguf import GgufHeader, read_header
from bramley.runners.embedded.tensors import Form, read_tensors, to_affine4, to_float32
from bramley.runners.embedded.tokenizer import write_tokenizer
from bramley.runners.tensorfile import write_tensors

Report = Callable[[Phase, float, float, str], None]

_CONVERTER_VERSION: Final = 2
_NAME: Final = "smollm2-135m-instruct"
_MANIFEST: Final = "conversion.json"
_MARGIN_BYTES: Final = 16_000_000


def ensure(cache_dir: Path, report: Report, form: Form | None = None) -> Path:
    """The model directory of the embedded model, under ``cache_dir``/models; made now if it is not there yet.

    ``form`` None: affine 4-bit where MLX computes on a GPU, else float32. ``report(phase, done, total, note)`` is
    called on this thread, in bytes, between tensors and while another start converts. Raises ModelLoadError.
    """
    form = form or ("affine4" if mx.metal.is_available() or mx.cuda.is_available() else "float32")
    source = package.find()
    key = f"{_CONVERTER_VERSION} {form} {source.path.name} {source.nbytes} {source.digest}"
    target = cache_dir / "models" / f"{_NAME}-{form}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if _complete(target):
        return target
    header = read_header(source.path)
    conversion = _Conversion(source, header, form, report)
    build_once(target, conversion.nbytes + _MARGIN_BYTES, conversion.write, _complete, conversion.wait)
    return target


def conversion_notes(path: Path) -> tuple[str, ...]:
    """Sentences on what was converted, for a directory made by ``ensure``; empty for any other."""
    manifest = _manifest(path)
    return tuple(manifest["notes"]) if manifest else ()


class _Conversion:
    """One conversion: computes what is to be written, and writes it."""

    def __init__(self, source: package.Source, header: GgufHeader, form: Form, report: Report) -> None:
        self._source = source
        self._header = header
        self._form = form
        self._report = report
        tensors = read_tensors(_load(source.path, header))
        config, notes = _config(header.metadata), [_types_note(source, header)]
        if form == "float32":
            self._weights = to_float32(tensors)
        else:
            self._weights, config["quantization"], requantized = to_affine4(tensors)
            notes.append("Its weights are computed with in 4 bits (affine), the embedding in 8.")
            if requantized:
                notes.append(f"{len(requantized)} tensors of a type MLX has no kernel for were quantized to 4 bits.")
        config["tie_word_embeddings"] = "lm_head.weight" not in self._weights
        config["dtype"] = "float32"
        self._model_config = config
        self._notes = notes
        self.nbytes = sum(array.nbytes for array in self._weights.values())

    def wait(self) -> None:
        self._report("converting", 0.0, float(self.nbytes), "waiting for another start that converts the model")

    def write(self, directory: Path) -> None:
        """Fill ``directory``; the manifest, which makes it complete, comes last."""
        note = f"{self._source.path.name} to {self._form}"
        done = 0
        self._report("converting", 0.0, float(self.nbytes), note)

        def wrote(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            self._report("converting", float(done), float(self.nbytes), note)

        metadata = self._header.metadata
        write_tokenizer(metadata, directory, self._model_config["max_position_embeddings"])
        ids: dict[str, Any] = {key: self._model_config[key] for key in _TOKEN_IDS if key in self._model_config}
        _write_json(directory / "generation_config.json", {**ids, **_SAMPLING})
        _write_json(directory / "config.json", self._model_config)
        write_tensors(directory / "model.safetensors", self._weights, wrote)
        manifest = {
            "converter": _CONVERTER_VERSION,
            "source": {"package": package.PACKAGE, "version": self._source.version, "file": self._source.path.name},
            "form": self._form,
            "tensor_types": self._header.type_counts(),
            "notes": self._notes,
            "files": {file.name: file.stat().st_size for file in sorted(directory.iterdir())},
        }
        _write_json(directory / _MANIFEST, manifest)


# What the authors of SmolLM2 recommend; at temperature 1 a model of this size loses its thread.
_SAMPLING: Final = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
_TOKEN_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")


def _load(path: Path, header: GgufHeader) -> Mapping[str, mx.array]:
    try:
        arrays = mx.load(str(path), format="gguf")
    except (RuntimeError, ValueError) as error:
        types = ", ".join(header.type_counts())
        raise ModelLoadError(f"MLX cannot read {path} with tensors of the types {types}: {error}.") from error
    assert isinstance(arrays, dict)
    return arrays


def _config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of mlx-lm's llama. q and k rows stay in GGUF's order, made for rotating neighbouring pairs."""
    if metadata.get("general.architecture") != "llama":
        raise ModelLoadError(f"The model file is a {metadata.get('general.architecture')}, not a llama.")
    try:
        heads, width = metadata["llama.attention.head_count"], metadata["llama.embedding_length"]
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": width,
            "intermediate_size": metadata["llama.feed_forward_length"],
            "num_hidden_layers": metadata["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
            "head_dim": metadata.get("llama.rope.dimension_count", width // heads),
            "rms_norm_eps": metadata["llama.attention.layer_norm_rms_epsilon"],
            "rope_theta": metadata.get("llama.rope.freq_base", 10000.0),
            "rope_traditional": True,
            "max_position_embeddings": metadata["llama.context_length"],
            "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        }
    except KeyError as error:
        raise ModelLoadError(f"The model file lacks {error.args[0]}.") from error
    for name, key in zip(_TOKEN_IDS, ("bos", "eos", "padding"), strict=True):
        if (index := metadata.get(f"tokenizer.ggml.{key}_token_id")) is not None:
            config[name] = index
    return config


def _types_note(source: package.Source, header: GgufHeader) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in header.type_counts().items())
    return f"The embedded model is {source.path.name} of {package.PACKAGE} {source.version}; its tensors: {counts}."


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2), encoding="utf-8")


def _manifest(directory: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and {"files", "notes"} <= manifest.keys() else None


def _complete(directory: Path) -> bool:
    """Whether every file is there in its size: a power loss or a careless hand may have taken some."""
    manifest = _manifest(directory)
    if manifest is None:
        return False
    try:
        return all((directory / name).stat().st_size == size for name, size in manifest["files"].items())
    except OSError:
        return False
