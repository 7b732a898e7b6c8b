"""The engine without a server: its raw loop over the prompts of the workload "short", as one process started for it.

    python -m bench.loop --engine bramley|mlx_lm --model DIR --cache DIR [--threads 1] < plan.json

``bramley`` is Bramley's engine, ``mlx_lm`` the BatchGenerator of mlx-lm; both on the BLAS that Bramley puts under MLX.
The plan is a ``LoopPlan``, the answer on standard output a list of ``Outcome``, both as JSON. Prompts are submitted all
at once; a token's time is the time the loop has it as a number.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench.outcomes import Outcome
from bench.prompts import Message
from bench.workloads import digest, percentile
from bramley.worker.blas import preload

_WARM_TOKENS = 8

# Called with the place of a prompt and a token of its answer.
Taken = Callable[[int, int], None]
Loop = Callable[[Sequence[list[int]], int, Taken], None]


class LoopPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``waves`` of prompts, read one wave after the other, and one before them that is not measured."""

    warm_up: list[list[Message]]
    waves: list[list[list[Message]]]
    max_tokens: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loop", description=__doc__)
    parser.add_argument("--engine", choices=("bramley", "mlx_lm"), required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True, help="where the shim is, or is made")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=LoopPlan)
    preload(arguments.cache, "auto", arguments.threads)
    loop, render, decode = _bramley(arguments.model) if arguments.engine == "bramley" else _mlx_lm(arguments.model)
    loop([render(prompt) for prompt in plan.warm_up], _WARM_TOKENS, lambda place, token: None)
    outcomes = [_measure(loop, [render(prompt) for prompt in wave], plan.max_tokens, decode) for wave in plan.waves]
    sys.stdout.write(msgspec.json.encode(outcomes).decode())
    return 0


def _measure(loop: Loop, prompts: Sequence[list[int]], max_tokens: int, decode: Callable[[list[int]], str]) -> Outcome:
    times: list[list[float]] = [[] for _ in prompts]
    answers: list[list[int]] = [[] for _ in prompts]

    def taken(place: int, token: int) -> None:
        times[place].append(time.perf_counter())
        answers[place].append(token)

    began, spent = time.perf_counter(), time.process_time()
    loop(prompts, max_tokens, taken)
    wall, spent = time.perf_counter() - began, time.process_time() - spent
    tokens = sum(map(len, times))
    firsts = [each[0] - began for each in times if each]
    gaps = [after - before for each in times for before, after in itertools.pairwise(each)]
    values = {
        "errors": float(sum(not each for each in times)),
        "tokens": float(tokens),
        "wall_s": wall,
        "tokens_per_s": tokens / wall,
        "cpu_ms_per_token": 1e3 * spent / tokens,
        "prompt_tokens": sum(map(len, prompts)) / len(prompts),
        "ttft_p50_ms": 1e3 * percentile(firsts, 50),
        "ttft_p95_ms": 1e3 * percentile(firsts, 95),
        "gap_p50_ms": 1e3 * percentile(gaps, 50),
        "gap_p95_ms": 1e3 * percentile(gaps, 95),
        "gap_max_ms": 1e3 * max(gaps),
    }
    texts = tuple(digest(decode(answer)) for answer in answers)
    return Outcome(workload="short", level=len(prompts), values=values, texts=texts)


# MLX is imported only now in what follows: it takes the BLAS that is there when it is loaded.


def _rendering(path: Path) -> tuple[Callable[[list[Message]], list[int]], Callable[[list[int]], str], Any]:
    from mlx_lm.utils import load_tokenizer  # noqa: PLC0415

    tokenizer: Any = load_tokenizer(path)
    return (
        lambda messages: tokenizer.apply_chat_template(messages, add_generation_prompt=True),
        lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True),
        tokenizer,
    )


def _bramley(path: Path) -> tuple[Loop, Callable[[list[Message]], list[int]], Callable[[list[int]], str]]:
    from bramley.domain.sampling import Sampling  # noqa: PLC0415
    from bramley.domain.wire import EngineOptions, Step, Submit  # noqa: PLC0415
    from bramley.engine import fast  # noqa: PLC0415
    from bramley.engine.engine import Engine, ModelLimits  # noqa: PLC0415
    from bramley.runners.facts import model_facts  # noqa: PLC0415
    from bramley.runners.weights import load_text_model  # noqa: PLC0415

    model, config, _ = load_text_model(path, "auto", lambda *_: None)
    fast.apply(model, "cpu")
    facts = model_facts(config)
    ends = frozenset(facts.eos_token_ids)
    engine = Engine(model, ModelLimits(facts.context_length or 4096, ends), EngineOptions())

    def loop(prompts: Sequence[list[int]], max_tokens: int, taken: Taken) -> None:
        for place, prompt in enumerate(prompts):
            greedy = Sampling(temperature=0.0)
            submit = Submit(
                sequence=place,
                token_ids=tuple(prompt),
                max_tokens=max_tokens,
                sampling=greedy,
                stop_token_ids=tuple(ends),
            )
            engine.submit(submit)
        while engine.has_work:
            for message in engine.step():
                if isinstance(message, Step):
                    for row in message.rows:
                        for token in row.token_ids:
                            taken(row.sequence, token)

    render, decode, _tokenizer = _rendering(path)
    return loop, render, decode


def _mlx_lm(path: Path) -> tuple[Loop, Callable[[list[Message]], list[int]], Callable[[list[int]], str]]:
    from mlx_lm.generate import BatchGenerator  # noqa: PLC0415
    from mlx_lm.utils import load_model  # noqa: PLC0415

    model, _config = load_model(path)
    render, decode, tokenizer = _rendering(path)
    stops = [[token] for token in tokenizer.eos_token_ids]

    def loop(prompts: Sequence[list[int]], max_tokens: int, taken: Taken) -> None:
        generator = BatchGenerator(model, stop_tokens=stops)
        places = dict(
            zip(generator.insert(list(prompts), [max_tokens] * len(prompts)), range(len(prompts)), strict=True)
        )
        running = set(places)
        while running:
            for response in generator.next_generated():
                if response.finish_reason != "stop":
                    taken(places[response.uid], response.token)
                if response.finish_reason:
                    running.discard(response.uid)

    return loop, render, decode


if __name__ == "__main__":
    sys.exit(main())
