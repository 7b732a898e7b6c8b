"""``run`` (also without a word) measures servers in turn; ``report`` prints a stored run again."""

import argparse
import asyncio
import json
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

import msgspec

from bench.blas import preload
from bench.outcomes import Run, Visit
from bench.report import markdown, reference_of
from bench.rounds import Plan, visits
from bench.servers import ROWS, ServerRow, Settings, row_from_command
from bench.workloads import WORKLOADS, Load
from bramley import __version__
from bramley.worker.blas import default_threads, usable_cores

_CONVERSION_S = 300
_PACKAGES = ("mlx", "mlx-lm", "numpy")


def main() -> int:
    arguments = _parser().parse_args(sys.argv[1:] or ["run"])
    if arguments.action == "report":
        sys.stdout.write(markdown(msgspec.json.decode(arguments.file.read_bytes(), type=Run)))
        return 0
    try:
        run = asyncio.run(_run(arguments))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.stderr.write("interrupted; the servers were ended\n")
        return 130
    sys.stdout.write(markdown(run))
    if arguments.out:
        arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=1))
    return 1 if any(visit.failure for visit in run.visits) else 0


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(",") if part)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    report = actions.add_parser("report", help="print a run stored with --out")
    report.add_argument("file", type=Path)
    run = actions.add_parser("run", help="start servers in turn and measure them")
    what = run.add_argument_group("what is measured")
    what.add_argument("--model", default="", help="model directory every server is given (default: the embedded one)")
    what.add_argument(
        "--servers", type=_names, default=("bramley", "mlx_lm", "bramley-loop"), help=f"rows: {', '.join(ROWS)}"
    )
    what.add_argument("--server", action="append", default=[], metavar="NAME=COMMAND", help=_COMMAND_HELP)
    what.add_argument("--served-model", action="append", default=[], metavar="NAME=ID", help=_SERVED_HELP)
    what.add_argument("--reference", default="", help="server the ratios are taken against (default: the first peer)")
    what.add_argument(
        "--threads", type=int, default=0, help="BLAS threads of each server (default: what bramley takes)"
    )
    load = Load()
    how = run.add_argument_group("how")
    how.add_argument("--workloads", type=_names, default=("short",), help=f"all, or of: {', '.join(WORKLOADS)}")
    how.add_argument("--rounds", type=int, default=3)
    how.add_argument("--levels", type=_numbers, default=load.levels, help="streams at once, short prompts")
    how.add_argument("--long-levels", type=_numbers, default=load.long_levels, help="streams at once, long prompts")
    how.add_argument("--max-tokens", type=int, default=load.max_tokens)
    how.add_argument("--long-tokens", type=int, default=load.long_tokens, help="length of long prompts")
    how.add_argument("--intruder-tokens", type=int, default=load.intruder_tokens, help="of head-of-line's long prompt")
    how.add_argument("--abandoned-tokens", type=int, default=load.abandoned_tokens, help="of disconnect's long prompt")
    how.add_argument("--running", type=int, default=load.running_streams, help="streams of head-of-line")
    how.add_argument("--prompt", default="", help="send this in place of the essays (a script model's script)")
    how.add_argument("--body", type=json.loads, default={}, help="JSON object merged into every request")
    how.add_argument("--seed", type=int, default=load.seed)
    how.add_argument("--timeout", type=float, default=load.timeout_s, help="seconds a request may take")
    how.add_argument("--start-timeout", type=float, default=180.0, help="seconds until a server must be ready")
    how.add_argument("--out", type=Path, help="also write everything measured as JSON")
    how.add_argument("--logs", type=Path, help="keep the servers' output in this directory")
    return parser


_COMMAND_HELP = (
    "measure any other server too: a command with {model}, {port} and, where wanted, {host}, {python}, {threads}, "
    "{blas}; may be given several times"
)
_SERVED_HELP = "model name to send to a server (default: the first one its /v1/models lists)"


async def _run(arguments: argparse.Namespace) -> Run:
    task = asyncio.current_task()
    if task:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    rows = _rows(arguments)
    reference = reference_of([row.name for row in rows], arguments.reference)
    if reference not in {row.name for row in rows}:
        raise ValueError(f"--reference {reference} is none of the servers measured")
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        plan = _plan(arguments, rows, Path(scratch))
        visited: list[Visit] = [visit async for visit in visits(plan)]
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    return Run(command=command, machine=_machine(plan), reference=reference, visits=tuple(visited))


def _rows(arguments: argparse.Namespace) -> tuple[ServerRow, ...]:
    unknown = [name for name in arguments.servers if name not in ROWS]
    if unknown:
        raise ValueError(f"no such server: {', '.join(unknown)}; there are {', '.join(ROWS)}, or use --server")
    rows = [ROWS[name] for name in arguments.servers] + [row_from_command(text) for text in arguments.server]
    served = dict(text.split("=", 1) for text in arguments.served_model)
    return tuple(msgspec.structs.replace(row, request_model=served.get(row.name, row.request_model)) for row in rows)


def _plan(arguments: argparse.Namespace, rows: tuple[ServerRow, ...], scratch: Path) -> Plan:
    workloads = tuple(WORKLOADS) if "all" in arguments.workloads else arguments.workloads
    unknown = [name for name in workloads if name not in WORKLOADS]
    if unknown:
        raise ValueError(f"no such workload: {', '.join(unknown)}; there are all, {', '.join(WORKLOADS)}")
    logs = arguments.logs or scratch
    logs.mkdir(parents=True, exist_ok=True)
    threads = arguments.threads or default_threads()
    settings = Settings(
        model=arguments.model or _embedded_model(),
        threads=threads,
        blas=preload(scratch, threads) if any(row.wants_blas for row in rows) else "",
        cache=scratch,
        logs=logs,
        start_timeout_s=arguments.start_timeout,
    )
    load = Load(
        levels=arguments.levels,
        long_levels=arguments.long_levels,
        max_tokens=arguments.max_tokens,
        long_tokens=arguments.long_tokens,
        intruder_tokens=arguments.intruder_tokens,
        abandoned_tokens=arguments.abandoned_tokens,
        running_streams=arguments.running,
        timeout_s=arguments.timeout,
        prompt=arguments.prompt,
        body=arguments.body,
        seed=arguments.seed,
    )
    return Plan(rows=rows, rounds=arguments.rounds, workloads=workloads, load=load, settings=settings)


def _embedded_model() -> str:
    """The embedded model's directory, converted now if need be. Raises ValueError when it cannot be had."""
    command = [sys.executable, "-m", "bench.embedded"]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_CONVERSION_S).stdout.strip()
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ValueError(f"the embedded model cannot be made: {last}; name a directory with --model") from error
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"the embedded model was not made within {_CONVERSION_S} s; name one with --model") from error


def _machine(plan: Plan) -> dict[str, str]:
    versions = [f"bramley {__version__}", *[f"{name} {metadata.version(name)}" for name in _PACKAGES]]
    return {
        "machine": f"{platform.system()} {platform.machine()}, {usable_cores()} usable cores",
        "software": f"Python {platform.python_version()}, {', '.join(versions)}",
        "BLAS threads": str(plan.settings.threads),
        "rounds": f"{plan.rounds}, each server once a round, in alternating order",
        "figures": "median over the rounds (lowest to highest); ratios are medians of the ratios within a round",
    }


if __name__ == "__main__":
    sys.exit(main())
