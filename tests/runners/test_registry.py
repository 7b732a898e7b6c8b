"""How runners are found."""

import subprocess
import sys
from pathlib import Path

from bramley.runners.base import is_out_of_memory
from bramley.runners.registry import discover

FOUND_WITHOUT_MLX = """
import sys
from bramley.runners.registry import discover
assert "text" in discover()
assert not [name for name in sys.modules if name.split(".")[0] in ("mlx", "mlx_lm", "transformers")]
"""


def test_a_file_is_a_runner_when_it_declares_its_kind(tmp_path: Path) -> None:
    (tmp_path / "smell.py").write_text('"""Doc."""\nimport os\n\nKIND = "odour"\n')
    (tmp_path / "helper.py").write_text("OTHER = 1\n\n\ndef f():\n    KIND = 'no'\n")
    (tmp_path / "computed.py").write_text("KIND = 'a' + 'b'\n")
    assert list(discover(tmp_path)) == ["odour"]


def test_finding_the_runners_loads_no_mlx() -> None:
    subprocess.run([sys.executable, "-c", FOUND_WITHOUT_MLX], check=True, timeout=60)


def test_errors_of_mlx_and_of_the_driver_are_known_as_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[malloc] Unable to allocate 123 bytes."))
    assert is_out_of_memory(RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory"))
    assert not is_out_of_memory(RuntimeError("[matmul] Last dimension of first input does not match"))
