"""What the tricks of bramley.engine.fast are worth on a CPU: decode steps and prompts with and without them, in turn.

    python -m bench.forward --cache DIR [--rounds 3] [--sets none,attention,attention+swiglu,all] [--json FILE]

Every set of tricks is measured in a process of its own, as one of them changes the heap for good; the sets take
turns, in the opposite order every other round, so that a change of the machine's load meets all. "none" is mlx-lm's
model as it is, on the same BLAS. Times are CPU time of the process with one BLAS thread. Decoding starts from caches
filled with random numbers, rows of one length, as its time does not depend on them. Printed: medians over the rounds,
and the median of each round's ratio to the first set.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bramley.worker.blas import preload

_THREADS = 1
_STEPS = 6
_TRICKS = "attention,swiglu,rope,heap"
_SETS = f"none,{_TRICKS},all"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.forward", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="where the model and the shim are, or are made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", default=_SETS, help=f"tricks joined by +, of {_TRICKS}; none; all ({_SETS})")
    parser.add_argument("--decode", default="1x128,8x128,32x128,16x512", help="rows x length of their caches")
    parser.add_argument("--prompts", default="256,1024", help="tokens of a prompt")
    parser.add_argument("--chunks", default="256", help="tokens of a prompt read at once")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        sys.stdout.write(json.dumps(_measure(arguments)))
        return 0
    sets = arguments.sets.split(",")
    rounds = []
    for number in range(arguments.rounds):
        order = sets if number % 2 == 0 else sets[::-1]
        rounds.append({name: _in_process(name) for name in order})
        if arguments.json:
            arguments.json.write_text(json.dumps(rounds, indent=1))
    sys.stdout.write(_table(sets, rounds))
    return 0


def _in_process(name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.forward", *sys.argv[1:], "--measure", name]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ))
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of CPU time of a decode step, by rows and length, and of a prompt, by tokens and chunk."""
    report = preload(arguments.cache, "auto", _THREADS)
    if report.shim is None:
        raise SystemExit(" ".join(report.notes))
    # MLX only now: it takes the BLAS that is there when it is loaded
    import mlx.core as mx  # noqa: PLC0415

    from bramley.engine import fast  # noqa: PLC0415
    from bramley.runners.embedded import ensure  # noqa: PLC0415
    from bramley.runners.weights import load_text_model  # noqa: PLC0415

    model = load_text_model(ensure(arguments.cache, lambda *_: None, "float32"), "auto", lambda *_: None).model
    names = {"none": "", "all": "+".join(fast.TRICKS)}.get(arguments.measure, arguments.measure)
    fast.apply(model, "cpu", names.split("+"))
    mx.random.seed(0)
    figures = {}
    for case in arguments.decode.split(","):
        rows, length = map(int, case.split("x"))
        figures[f"decode {rows} x {length}, ms"] = _decode_ms(model, rows, length)
    for prompt in map(int, arguments.prompts.split(",")):
        for chunk in map(int, arguments.chunks.split(",")):
            if chunk <= prompt:
                figures[f"prompt of {prompt} by {chunk}, ms"] = _prompt_ms(model, prompt, chunk)
    return figures


def _decode_ms(model: Any, rows: int, length: int) -> float:
    """One greedy step of ``rows`` sequences that have ``length`` tokens: the median of some."""
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.models.cache import BatchKVCache, KVCache  # noqa: PLC0415

    shape = (rows, model.args.num_key_value_heads, length, model.args.hidden_size // model.args.num_attention_heads)
    caches = [KVCache() if rows == 1 else BatchKVCache([0] * rows) for _ in model.layers]
    for cache in caches:
        cache.update_and_fetch(mx.random.normal(shape), mx.random.normal(shape))
    mx.eval([cache.state for cache in caches])
    tokens = mx.arange(rows)[:, None] + 1000
    times = []
    for _ in range(_STEPS + 2):
        began = time.process_time()
        tokens = mx.argmax(model(tokens, cache=caches)[:, -1], axis=-1)[:, None]
        mx.eval(tokens)
        times.append((time.process_time() - began) * 1000)
    # the first grows the caches, and compiles
    return statistics.median(times[2:])


def _prompt_ms(model: Any, prompt: int, chunk: int) -> float:
    """Reading a prompt without the head: the second of two."""
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415

    tokens = (mx.arange(prompt) * 7 % 40000)[None] + 1000
    spent = 0.0
    for length in (min(prompt, 2 * chunk), prompt):
        caches = make_prompt_cache(model)
        began = time.process_time()
        for start in range(0, length, chunk):
            model.model(tokens[:, start : start + chunk], cache=caches)
            mx.eval([cache.state for cache in caches])
        spent = (time.process_time() - began) * 1000
    return spent


def _table(sets: list[str], rounds: list[dict[str, dict[str, float]]]) -> str:
    cases = list(rounds[0][sets[0]])
    lines = ["| tricks | " + " | ".join(cases) + " |", "|---|" + "---:|" * len(cases)]
    for name in sets:
        cells = []
        for case in cases:
            spent = statistics.median(each[name][case] for each in rounds)
            ratio = statistics.median(each[sets[0]][case] / each[name][case] for each in rounds)
            cells.append(f"{spent:.0f} ({ratio:.2f}x)")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
