"""Reports: medians, ratios within rounds, and the whole command."""

import asyncio
import signal
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from bench.outcomes import Outcome, Run, Visit
from bench.report import markdown, reference_of
from tests.bench.conftest import TINY

ROOT = Path(__file__).parents[2]


def _visit(server: str, number: int, speed: float, errors: float, text: str = "a") -> Visit:
    values = {"tokens_per_s": speed, "errors": errors}
    return Visit(
        server=server, round=number, outcomes=(Outcome(workload="short", level=8, values=values, texts=(text, "b")),)
    )


def test_ratios_are_taken_within_rounds_and_errors_are_added_up() -> None:
    run = Run(
        command="x",
        machine={"rounds": "3"},
        reference="peer",
        visits=(
            *(_visit("ours", 1, 20, 0), _visit("peer", 1, 10, 1)),
            *(_visit("peer", 2, 100, 2), _visit("ours", 2, 300, 0, "other")),
            *(_visit("ours", 3, 40, 0), _visit("peer", 3, 20, 0), Visit(server="lost", round=3, failure="why")),
        ),
    )
    lines = markdown(run).splitlines()
    assert "| short at 8 | ours | peer | lost | ours / peer | lost / peer |" in lines
    assert "| tokens/s | 40.0 | 20.0 | - | 2.00 | - |" in lines
    assert "| tokens/s | 40.0 (20.0 to 300.0) | 20.0 (10.0 to 100.0) | - | 2.00 | - |" in lines
    assert "| errors, all rounds | 0 | 3 | - |  |  |" in lines
    assert "| answers equal to peer's | 5 of 6 |  |  |  |  |" in lines
    assert lines[-1] == "- round 3, lost: why"


@pytest.mark.parametrize(
    ("names", "wanted", "expected"),
    [
        (["bramley", "a", "b"], "", "a"),
        (["a", "bramley"], "", "a"),
        (["bramley"], "", "bramley"),
        (["bramley", "bramley-loop", "a"], "", "a"),
        (["a"], "b", "b"),
    ],
)
def test_the_reference_is_the_first_peer(names: list[str], wanted: str, expected: str) -> None:
    assert reference_of(names, wanted) == expected


async def _bench(*arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", *arguments),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await process.communicate()
    return process.returncode or 0, output.decode(), errors.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupted_run_ends_its_servers(number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench", "run", "--servers", "", "--server", f"one={{python}} {TINY} {{port}} 0.01"),
        *("--model", "none", "--levels", "1,2", "--max-tokens", "100"),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    # The second line reports the first wave: the server is up and under load.
    await process.stderr.readline()
    assert b"short, 1 stream" in await process.stderr.readline()
    servers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, errors = await process.communicate()
    assert process.returncode == 130
    assert b"the servers were ended" in errors
    assert servers and not [server for server in servers if server.is_running()]


async def test_two_servers_are_measured_in_turn_and_stored(tmp_path: Path) -> None:
    command = f"{{python}} {TINY} {{port}}"
    stored = tmp_path / "run.json"
    code, output, errors = await _bench(
        *("run", "--servers", "", "--server", f"one={command}", "--server", f"two={command} 0.002"),
        *("--model", "none", "--rounds", "2", "--levels", "1,2", "--max-tokens", "8", "--out", str(stored)),
    )
    assert code == 0, errors
    assert "| short at 1 / 2 | one | two | two / one |" in output
    assert "| answers equal to one's |  | 4 of 4 |  |" in output
    run = msgspec.json.decode(stored.read_bytes(), type=Run)
    assert [visit.server for visit in run.visits] == ["one", "two", "two", "one"]
    assert await _bench("report", str(stored)) == (0, output, "")


@pytest.mark.parametrize("arguments", [("--servers", "nobody"), ("--workloads", "none"), ("--reference", "nobody")])
async def test_a_name_that_does_not_exist_is_refused_before_anything_starts(arguments: tuple[str, str]) -> None:
    code, output, errors = await _bench("run", "--model", "none", "--servers", "mlx_lm-installed", *arguments)
    assert (code, output) == (2, "")
    assert arguments[1] in errors
