"""Greedy answers of an engine, held against mlx-lm's own generation.

Rounding depends on shapes, so equality is exact only up to ties: the two may differ where the oracle's two best logits
are closer than 1e-3. There the oracle's token is fed and the comparison goes on.
"""

from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.generate import generate_step

from bramley.domain.sampling import Sampling
from bramley.domain.wire import Failed, Finished, Step, Submit, ToFront
from bramley.engine.engine import Engine
from bramley.engine.model import Model

GREEDY = Sampling(temperature=0.0)
TIE = 1e-3


class Oracle:
    """The tokens mlx-lm generates after a prompt, and how far the runner-up of each was behind."""

    def __init__(self, model: Model, prompt: Sequence[int], count: int) -> None:
        self.tokens: list[int] = []
        self.margins: list[float] = []
        for token, logprobs in generate_step(mx.array(list(prompt)), model, max_tokens=count):
            best = mx.sort(mx.topk(logprobs, 2))
            self.tokens.append(int(token))
            self.margins.append(float(best[1] - best[0]))


def collect(messages: Sequence[ToFront], answers: dict[int, list[int]]) -> None:
    """Add the rows of steps to each sequence's answer."""
    for message in messages:
        if isinstance(message, Step):
            for row in message.rows:
                answers.setdefault(row.sequence, []).extend(row.token_ids)


def run_to_end(engine: Engine, answers: dict[int, list[int]] | None = None) -> dict[int, list[int]]:
    """Step until nothing is left to do. Fails on any Failed."""
    answers = {} if answers is None else answers
    while engine.has_work:
        messages = engine.step()
        assert not [message for message in messages if isinstance(message, Failed)]
        collect(messages, answers)
    return answers


def generate(engine: Engine, prompt: Sequence[int], count: int, sequence: int = 10_000) -> list[int]:
    """A greedy answer, alone."""
    refused = engine.submit(Submit(sequence=sequence, token_ids=tuple(prompt), max_tokens=count, sampling=GREEDY))
    assert not refused
    return run_to_end(engine)[sequence]


def ties_until_equal(engine: Engine, prompt: Sequence[int], answer: Sequence[int], oracle: Oracle) -> int:
    """Compare an answer with the oracle's; the number of ties that had to be passed. Fails on a real difference."""
    ties = 0
    start = 0
    while (first := _first_difference(answer, oracle.tokens[start:])) is not None:
        at = start + first
        assert oracle.margins[at] < TIE, f"token {at}: {answer[first]}, not {oracle.tokens[at]}"
        ties += 1
        start = at + 1
        left = len(oracle.tokens) - start
        answer = generate(engine, [*prompt, *oracle.tokens[:start]], left) if left else []
    return ties


def _first_difference(answer: Sequence[int], wanted: Sequence[int]) -> int | None:
    assert len(answer) == len(wanted)
    return next((index for index, pair in enumerate(zip(answer, wanted, strict=True)) if pair[0] != pair[1]), None)


def finished_of(messages: Sequence[ToFront]) -> list[Finished]:
    return [message for message in messages if isinstance(message, Finished)]
