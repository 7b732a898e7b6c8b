"""What the BLAS under MLX is worth on a CPU: products, prefill and decode with and without the shim, in turn.

    python -m bench.products --cache DIR [--rounds 5] [--json FILE]

Each measurement is a process of its own, as MLX takes the BLAS it finds when it is loaded; the two take turns, so
that a change of the machine's load meets both. Times are CPU time of the process with one thread: what other
programs do disturbs it little. Printed: the median over the rounds, and the median of each round's ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bramley.worker.blas import preload

_THREADS = 1
_PROMPT = 64
_DECODED = 8
_REPEATS = 5
# rows, inner, columns: SmolLM2-135M's feed-forward and head, decoding one and eight sequences, and reading a prompt
_SIZES = ((1, 576, 1536), (8, 576, 1536), (64, 576, 1536), (256, 576, 1536), (1, 576, 49152), (8, 576, 49152))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.products", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="where the model and the shim are, or are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--measure", choices=("auto", "off"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(_measure(arguments.cache, arguments.measure == "auto")))
        return 0
    rounds = [{mode: _in_process(arguments.cache, mode) for mode in ("off", "auto")} for _ in range(arguments.rounds)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=1))
    sys.stdout.write(_table(rounds))
    return 0


def _in_process(cache: Path, mode: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.products", "--cache", str(cache), "--measure", mode]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ))
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def _measure(cache: Path, with_shim: bool) -> dict[str, float]:
    """Milliseconds of CPU time: a product, a prompt, a decoded token."""
    report = preload(cache, "auto" if with_shim else "off", _THREADS)
    if with_shim and report.shim is None:
        raise SystemExit(" ".join(report.notes))
    # MLX only now: it takes the BLAS that is there when it is loaded
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415

    from bramley.runners.embedded import ensure  # noqa: PLC0415
    from bramley.runners.weights import load_text_model  # noqa: PLC0415

    def product(left: mx.array, right: mx.array) -> None:
        mx.eval(left @ right.T)

    figures = {}
    for rows, inner, columns in _SIZES:
        left, right = mx.random.normal((rows, inner)), mx.random.normal((columns, inner))
        mx.eval(left, right)
        figures[f"{rows} x {inner} by {inner} x {columns}, ms"] = _cpu_ms(partial(product, left, right))
    model = load_text_model(ensure(cache, lambda *_: None, "float32"), "auto", lambda *_: None).model
    prompt = mx.arange(_PROMPT)[None] + 1000

    def read() -> list[object]:
        caches: list[object] = make_prompt_cache(model)
        mx.eval(model(prompt, cache=caches)[:, -1])
        return caches

    figures[f"prompt of {_PROMPT} tokens, ms"] = _cpu_ms(read, 1)
    caches = read()
    step = _cpu_ms(lambda: mx.eval(model(prompt[:, :1], cache=caches)), _DECODED)
    figures["decoded token, ms"] = step
    return figures


def _cpu_ms(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """Median of ``repeats``, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append((time.process_time() - began) * 1000)
    return statistics.median(times)


def _table(rounds: list[dict[str, dict[str, float]]]) -> str:
    lines = ["| measured | MLX's own | shim | ratio |", "|---|---:|---:|---:|"]
    for name in rounds[0]["off"]:
        off, shim = (statistics.median(each[mode][name] for each in rounds) for mode in ("off", "auto"))
        ratio = statistics.median(each["off"][name] / each["auto"][name] for each in rounds)
        lines.append(f"| {name} | {off:.2f} | {shim:.2f} | {ratio:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
