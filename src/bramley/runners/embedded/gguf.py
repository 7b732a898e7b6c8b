"""A reader of GGUF headers: metadata, and name, shape, type and extent of every tensor.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. The tensors
themselves are read by ``mx.load``, which says neither their types nor that a file ends too early.
"""

import mmap
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bramley.domain.errors import ModelLoadError

_SCALARS: Final = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", None, None, "<u8", "<i8", "<f8")
_STRING: Final = 8
_ARRAY: Final = 9

# type number: (name, elements of a block, bytes of a block)
_TYPES: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    30: ("BF16", 1, 2),
}


@dataclass(frozen=True)
class TensorInfo:
    """``shape`` in GGUF's order, fastest dimension first; ``offset`` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]

    def type_counts(self) -> dict[str, int]:
        """How many tensors there are of each type, most frequent first."""
        return dict(Counter(tensor.type_name for tensor in self.tensors).most_common())


def read_header(path: Path) -> GgufHeader:
    """Raises ModelLoadError when the file cannot be read, is no GGUF, is malformed, or lacks tensor data."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Cursor(data).header()
            size = len(data)
    except (struct.error, UnicodeDecodeError, ValueError, IndexError, TypeError) as error:
        raise ModelLoadError(f"{path} is not a GGUF file that can be read: {error}.") from error
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}.") from error
    end = max((tensor.offset + tensor.nbytes for tensor in header.tensors), default=0)
    if end > size:
        raise ModelLoadError(f"{path} is truncated: it has {size} bytes of {end}. Install its package again.")
    return header


class _Cursor:
    """Reads values one after another; whatever is malformed raises ValueError, struct.error or the like."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._number("<u4")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, not 2 or 3")
        tensor_count, pair_count = self._number("<u8"), self._number("<u8")
        metadata = {}
        for _ in range(pair_count):
            key = self._string()
            metadata[key] = self._value(self._number("<u4"))
        infos = [self._tensor() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", 32))
        start = -(-self._at // alignment) * alignment
        tensors = tuple(
            TensorInfo(info.name, info.shape, info.type_name, start + info.offset, info.nbytes) for info in infos
        )
        return GgufHeader(metadata, tensors)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        shape = tuple(self._number("<u8") for _ in range(self._number("<u4")))
        number, offset = self._number("<u4"), self._number("<u8")
        if number not in _TYPES:
            raise ValueError(f"tensor {name} has the unknown type {number}")
        type_name, elements, block = _TYPES[number]
        count = 1
        for size in shape:
            count *= size
        return TensorInfo(name, shape, type_name, offset, count // elements * block)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(self._scalar(kind))
        kind, count = self._number("<u4"), self._number("<u8")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        dtype = np.dtype(self._scalar(kind))
        return np.frombuffer(self._bytes(count * dtype.itemsize), dtype).tolist()

    def _scalar(self, kind: int) -> str:
        dtype = _SCALARS[kind]
        if dtype is None:
            raise ValueError("its metadata holds an array of arrays")
        return dtype

    def _number(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self._bytes(kind.itemsize), kind)[0].item()

    def _string(self) -> str:
        return self._bytes(self._number("<u8")).decode()

    def _bytes(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        if len(taken) != count:
            raise ValueError("it ends in the middle of its header")
        self._at += count
        return taken
