"""The header reader of GGUF files, on files that are right, cut and malformed."""

import struct
from pathlib import Path

import mlx.core as mx
import pytest

from bramley.domain.errors import ModelLoadError
from bramley.runners.embedded.gguf import read_header
from tests.support import tiny_gguf


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return tiny_gguf.install(tmp_path)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(pairs: bytes, count: int, tensors: bytes = b"", tensor_count: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, count) + pairs + tensors


def test_it_reads_what_mlx_reads(tiny: Path) -> None:
    header = read_header(tiny)
    arrays, metadata = mx.load(str(tiny), return_metadata=True)
    assert isinstance(arrays, dict) and isinstance(metadata, dict)
    assert header.metadata.keys() == metadata.keys()
    for name, value in metadata.items():
        assert header.metadata[name] == (value.tolist() if isinstance(value, mx.array) else value)
    assert {tensor.name: tensor.shape[::-1] for tensor in header.tensors} == {
        name: array.shape for name, array in arrays.items()
    }
    assert header.type_counts() == {"F16": 8, "F32": 3}
    assert all(tensor.nbytes == arrays[tensor.name].nbytes for tensor in header.tensors)


def test_a_header_cut_at_any_place_is_refused(tiny: Path, tmp_path: Path) -> None:
    data = tiny.read_bytes()
    first = min(tensor.offset for tensor in read_header(tiny).tensors)
    cut = tmp_path / "cut.gguf"
    for length in [*range(1, 200), *range(200, first, 41)]:
        cut.write_bytes(data[:length])
        with pytest.raises(ModelLoadError):
            read_header(cut)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty file"),
        (b"PK\x03\x04" + bytes(40), "does not begin with GGUF"),
        (gguf(b"", 0, version=1), "version is 1"),
        (gguf(string("a") + struct.pack("<I", 99), 1), "not a GGUF file that can be read"),
        (gguf(string("a") + struct.pack("<IIQ", 9, 9, 1), 1), "array of arrays"),
        (gguf(string("a") + struct.pack("<IIQ", 9, 4, 1 << 62), 1), "ends in the middle"),
        (gguf(b"", 1 << 40), "ends in the middle"),
        (gguf(b"", 0, string("t") + struct.pack("<IQIQ", 1, 32, 77, 0), 1), "unknown type 77"),
        (gguf(b"", 0, string("t") + struct.pack("<IQIQ", 1, 1 << 20, 0, 0), 1), "is truncated"),
    ],
)
def test_what_is_malformed_is_refused_with_the_reason(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelLoadError, match=said):
        read_header(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="cannot be read"):
        read_header(tmp_path / "none.gguf")
