"""What the files of a model directory say, read without loading them.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header itself, a JSON object
of ``{name: {"dtype", "shape", "data_offsets": [begin, end]}}`` with offsets from the header's end
(https://github.com/huggingface/safetensors#format).
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bramley.domain.errors import ModelLoadError

# The format's own limit.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class Tensor:
    """``dtype`` in the words of the format: F32, BF16, U32 ... ``stored_bytes`` as in the file."""

    dtype: str
    shape: tuple[int, ...]
    stored_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_config(directory: Path) -> dict[str, Any]:
    """``config.json`` as it is. Raises ``ModelLoadError`` when the directory or the file is not what it should be."""
    try:
        exists, is_directory = directory.exists(), directory.is_dir()
    except OSError as error:
        raise ModelLoadError(f"model {directory} cannot be read: {error.strerror or error}") from None
    if not exists:
        raise ModelLoadError(
            f"model {directory} does not exist: give a directory of this machine (names of a hub are not fetched)"
        )
    if not is_directory:
        raise ModelLoadError(f"model {directory} is not a directory: give the path of a model directory")
    file = directory / "config.json"
    tree = _json(file, _text(file))
    if not isinstance(tree, dict) or not isinstance(tree.get("model_type"), str):
        raise ModelLoadError(f"{file} does not name a model_type: is this the directory of a language model?")
    return tree


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors of ``model*.safetensors``, the files the loader takes. Raises ``ModelLoadError``."""
    files = sorted(directory.glob("model*.safetensors"))
    _require_shards(directory, {file.name for file in files})
    if not files:
        raise ModelLoadError(f"model {directory} has no weights: there is no model*.safetensors in it")
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= _header(file)
    return tensors


def _require_shards(directory: Path, present: set[str]) -> None:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return
    tree = _json(index, _text(index))
    names = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(names, dict):
        raise ModelLoadError(f"{index} is broken: it has no weight_map")
    missing = sorted({str(name) for name in names.values()} - present)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(f"model {directory} is incomplete: {missing[0]}{more} is missing")


# A pointer begins with "version https://git-lfs.github.com/spec/v1".
_LFS_POINTER = b"version "


def _header(file: Path) -> dict[str, Tensor]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            header = stream.read(length) if 2 <= length <= _MAX_HEADER_BYTES else b""
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror or error}") from None
    if start == _LFS_POINTER:
        raise ModelLoadError(f"{file} is a Git LFS pointer and not the file itself: run `git lfs pull`")
    if not header:
        raise ModelLoadError(f"{file} is not a safetensors file")
    data_bytes = size - 8 - length
    if data_bytes < 0:
        raise ModelLoadError(f"{file} is cut short within its header: fetch it again")
    tree = _json(file, header)
    tensors: dict[str, Tensor] = {}
    expected = 0
    try:
        tree.pop("__metadata__", None)
        for name, entry in tree.items():
            begin, end = map(int, entry["data_offsets"])
            tensors[name] = Tensor(str(entry["dtype"]), tuple(map(int, entry["shape"])), end - begin)
            expected = max(expected, end)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ModelLoadError(f"{file} is not a safetensors file: its header is malformed") from None
    if data_bytes < expected:
        raise ModelLoadError(f"{file} is cut short: {expected - data_bytes} bytes are missing; fetch it again")
    return tensors


def _text(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise ModelLoadError(f"model {file.parent} has no {file.name}: is this the directory of a model?") from None
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror or error}") from None


def _json(file: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ModelLoadError(f"{file} is broken: it is not valid JSON") from None
