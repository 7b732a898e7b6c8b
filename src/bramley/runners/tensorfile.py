"""safetensors files: headers read without loading, and files written tensor by tensor.

Format: https://github.com/huggingface/safetensors#format. 8 bytes little-endian length, a JSON header, the data.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np

from bramley.domain.errors import ModelLoadError

_MAX_HEADER_BYTES: Final = 100_000_000
_FLOATS: Final = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file. ``dtype`` is the format's name (F32, BF16, U32 ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def is_float(self) -> bool:
        return self.dtype in _FLOATS

    @property
    def size(self) -> int:
        count = 1
        for length in self.shape:
            count *= length
        return count


def read_entries(path: Path) -> tuple[TensorEntry, ...]:
    """Raises ModelLoadError when the file is missing, malformed, or shorter than its header says."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, _MAX_HEADER_BYTES):
                raise ValueError("header length")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = tuple(_entry(name, fields) for name, fields in header.items())
        end = 8 + length + max((fields["data_offsets"][1] for fields in header.values()), default=0)
    except FileNotFoundError as error:
        raise ModelLoadError(f"{path} is missing: the model directory is not complete.") from error
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}.") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelLoadError(f"{path} is not a safetensors file, or is damaged: fetch it again.") from error
    if size < end:
        raise ModelLoadError(f"{path} is truncated, {size} bytes of {end}: fetch it again.")
    return entries


def _entry(name: str, fields: dict[str, object]) -> TensorEntry:
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list)):
        raise ValueError(name)
    return TensorEntry(name, dtype, tuple(int(length) for length in shape), offsets[1] - offsets[0])


def write_tensors(path: Path, tensors: dict[str, mx.array], wrote: Callable[[int], None]) -> None:
    """Write ``tensors``, which is emptied: each is computed, written and let go, and ``wrote`` told its bytes.

    Raises OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _dtype_name(tensor.dtype),
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in list(tensors):
            data = np.array(tensors.pop(name), copy=False, order="C")
            file.write(data.data)
            wrote(data.nbytes)


def _dtype_name(dtype: mx.Dtype) -> str:
    if dtype == mx.float32:
        return "F32"
    if dtype == mx.float16:
        return "F16"
    if dtype == mx.uint32:
        return "U32"
    raise ValueError(f"no safetensors name for {dtype}")
