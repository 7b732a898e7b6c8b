"""What sampling costs beside the forward pass: one decode step of SmolLM2 for each way of sampling.

    python -m bench.sampling --cache DIR [--streams 32] [--rounds 7] [--json FILE]

In every round the model decodes a token for all streams once, and each way of sampling draws from these logits, in
an order that changes from round to round. Times are CPU time of the process with one thread in products: what other
programs do disturbs it little. Printed: medians over the rounds, and the median of each round's ratio of the whole
step to the greedy one.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bench.prompts import notes
from bramley.domain.sampling import Sampling
from bramley.worker.blas import preload

_PROMPT = 64
_MIXED = (
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.0, "frequency_penalty": 0.3, "presence_penalty": 0.3},
)
_WAYS: dict[str, tuple[dict[str, float], ...]] = {
    "greedy": ({"temperature": 0.0},),
    "mixed": _MIXED,
    "temperature 1": ({},),
    "min_p 0.05": ({"min_p": 0.05},),
    "top_k 40": ({"top_k": 40},),
    "top_k 20, top_p 0.8": ({"top_k": 20, "top_p": 0.8},),
    "top_p 0.95": ({"top_p": 0.95},),
    "typical_p 0.9": ({"typical_p": 0.9},),
    "XTC 0.5, 0.1": ({"xtc_probability": 0.5, "xtc_threshold": 0.1},),
    "greedy, repetition 1.1": ({"temperature": 0.0, "repetition_penalty": 1.1},),
    "greedy, frequency 0.3": ({"temperature": 0.0, "frequency_penalty": 0.3},),
    "greedy, 5 logprobs": ({"temperature": 0.0, "logprobs": 5},),
}
_FORWARD = "forward pass"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="where the model and the shim are, or are made")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    report = preload(arguments.cache, "auto", 1)
    rounds = _measure(arguments.cache, arguments.streams, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=1))
    sys.stdout.write(f"{arguments.streams} streams, CPU ms, {report.name}\n\n{_table(rounds)}")
    return 0


def _measure(cache: Path, streams: int, count: int) -> list[dict[str, float]]:
    """Milliseconds of CPU time by what was done, for each round."""
    # MLX only now: it takes the BLAS that is there when it is loaded
    import mlx.core as mx  # noqa: PLC0415
    from mlx_lm.models.cache import make_prompt_cache  # noqa: PLC0415
    from mlx_lm.utils import load_tokenizer  # noqa: PLC0415

    from bramley.engine.sampling import RowState, SamplingBatch, SamplingRow  # noqa: PLC0415
    from bramley.runners.embedded import ensure  # noqa: PLC0415
    from bramley.runners.weights import load_text_model  # noqa: PLC0415

    path = ensure(cache, lambda *_: None, "float32")
    model: Any = load_text_model(path, "auto", lambda *_: None).model
    tokenizer = load_tokenizer(path)
    rng = random.Random(0)
    prompts = [
        tokenizer.apply_chat_template(notes(rng, 2 * _PROMPT), add_generation_prompt=True)[-_PROMPT:]
        for _ in range(streams)
    ]
    caches = make_prompt_cache(model)
    logits = model(mx.array(prompts), cache=caches)[:, -1]

    def batch(settings: tuple[dict[str, Any], ...]) -> SamplingBatch:
        asked = [Sampling(**{"seed": index, **settings[index % len(settings)]}) for index in range(streams)]
        rows = [SamplingRow(sampling, 0, prompt=prompt) for sampling, prompt in zip(asked, prompts, strict=True)]
        return SamplingBatch([RowState(row, logits.shape[-1]) for row in rows])

    batches = {name: batch(settings) for name, settings in _WAYS.items()}

    def step(name: str) -> mx.array:
        drawn = batches[name].sample(logits)
        mx.eval(drawn.arrays())
        drawn.read()
        return drawn.tokens

    def decode(tokens: mx.array) -> mx.array:
        logits: mx.array = model(tokens[:, None], cache=caches)[:, -1]
        mx.eval(logits)
        return logits

    # Streams go on with sampled tokens: greedy ones fall into loops, whose next token is too sure
    tokens = [step(name) for name in _WAYS][1]
    rounds = []
    for _ in range(count):
        logits, forward = _timed(partial(decode, tokens))
        figures = {_FORWARD: forward}
        for name in rng.sample(list(_WAYS), len(_WAYS)):
            drawn, figures[name] = _timed(partial(step, name))
            tokens = drawn if name == "mixed" else tokens
        rounds.append(figures)
    return rounds


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    result = work()
    return result, (time.process_time() - began) * 1000


def _table(rounds: list[dict[str, float]]) -> str:
    forward = statistics.median(figures[_FORWARD] for figures in rounds)
    lines = [
        "| | sampling | step | step to greedy step |",
        "|---|---:|---:|---:|",
        f"| {_FORWARD} | | {forward:.1f} | |",
    ]
    for name in _WAYS:
        sampling = statistics.median(figures[name] for figures in rounds)
        step = statistics.median(figures[_FORWARD] + figures[name] for figures in rounds)
        ratio = statistics.median(
            (figures[_FORWARD] + figures[name]) / (figures[_FORWARD] + figures["greedy"]) for figures in rounds
        )
        lines.append(f"| {name} | {sampling:.1f} | {step:.1f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
