"""Servers are started, found ready, and always ended with all their processes."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from bench.servers import ServerRow, Settings, fill, row_from_command, running
from tests.bench.conftest import TINY

# Starts the tiny server and a process in a session of its own, as a server with workers does.
_WITH_A_WORKER = (
    "import subprocess, sys; "
    "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], start_new_session=True); "
    "subprocess.run([sys.executable, *sys.argv[1:]])"
)


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


async def test_leaving_the_block_ends_the_whole_tree(settings: Settings) -> None:
    row = ServerRow(name="tree", argv=(sys.executable, "-c", _WITH_A_WORKER, str(TINY), "{port}"))
    async with running(row, settings, "tree") as target:
        children = psutil.Process().children(recursive=True)
        processes, _ = target.tree.counts()
        target.tree.sample_rss()
        assert (target.model, processes) == ("tiny", 3)
        assert target.tree.cpu().children > 0
        assert target.tree.peak_rss > 3 * 2**20
    await asyncio.to_thread(psutil.wait_procs, children, timeout=10)
    assert not [child for child in children if _alive(child)]


async def test_a_server_is_ended_when_what_uses_it_fails(tiny_row: ServerRow, settings: Settings) -> None:
    with pytest.raises(RuntimeError, match="on purpose"):
        async with running(tiny_row, settings, "tiny"):
            children = psutil.Process().children(recursive=True)
            raise RuntimeError("on purpose")
    assert children and not [child for child in children if _alive(child)]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("{python}", "-c", "raise SystemExit('no such model')"), "exited with 1 .*no such model"),
        (("{python}", "-c", "import signal; print('here', flush=True); signal.pause()"), "not ready after 2 s: here"),
        (("/no/such/program",), "does not start"),
    ],
)
async def test_a_failed_start_says_why(argv: tuple[str, ...], message: str, tmp_path: Path) -> None:
    settings = Settings(model="m", threads=1, blas="", cache=tmp_path, logs=tmp_path, start_timeout_s=2.0)
    with pytest.raises(Exception, match=message):
        async with running(ServerRow(name="broken", argv=argv), settings, "broken"):
            pass


def test_a_command_becomes_a_row_and_keeps_its_json_braces() -> None:
    row = row_from_command("""peer=serve {model} --port {port} --args '{"thinking": false}'""")
    filled = [fill(part, {"model": "m", "port": "1"}) for part in row.argv]
    assert (row.name, filled) == ("peer", ["serve", "m", "--port", "1", "--args", '{"thinking": false}'])


@pytest.mark.parametrize("text", ["no command", "=x", "name="])
def test_a_command_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="NAME=COMMAND"):
        row_from_command(text)
