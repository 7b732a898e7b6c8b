"""Log-probabilities of a prompt's own tokens are the model's, however the prompt is read."""

from typing import Any

import mlx.core as mx
import pytest

from bramley.domain.sampling import Sampling
from bramley.domain.wire import Finished, PromptLogprobs, Step, Submit
from tests.engine.conftest import MakeEngine

PROMPT = tuple((index * 37 + 11) % 500 + 3 for index in range(40))


def scoring(number: int, prompt: tuple[int, ...] = PROMPT, top: int = 3) -> Submit:
    sampling = Sampling(temperature=0.0, prompt_logprobs=top)
    return Submit(sequence=number, token_ids=prompt, max_tokens=2, sampling=sampling)


def plain(number: int) -> Submit:
    return Submit(sequence=number, token_ids=PROMPT, max_tokens=6, sampling=Sampling(temperature=0.0))


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_they_are_those_of_one_pass_of_the_model(make_engine: MakeEngine, llama_model: Any, chunk: int) -> None:
    engine = make_engine(prefill_chunk=chunk)
    for number in (1, 2):
        engine.submit(plain(number))
    engine.step()
    engine.submit(scoring(3))
    messages = []
    while engine.has_work:
        messages += engine.step()
    [scores] = [message for message in messages if isinstance(message, PromptLogprobs)]
    logits = llama_model(mx.array([PROMPT]))[0]
    wanted = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert scores.sequence == 3 and len(scores.rows) == len(PROMPT) - 1
    for place, row in enumerate(scores.rows):
        assert row.chosen == pytest.approx(wanted[place, PROMPT[place + 1]].item(), abs=1e-4)
        best = mx.sort(wanted[place])[::-1][:3].tolist()
        assert list(row.top) == pytest.approx(best, abs=1e-4)
        assert [wanted[place, index].item() for index in row.top_ids] == pytest.approx(best, abs=1e-4)
    assert not any(engine.held.values())


def test_they_come_once_and_before_the_first_token(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(scoring(1))
    messages = []
    while engine.has_work:
        messages += engine.step()
    assert [type(message) for message in messages] == [PromptLogprobs, Step, Step, Finished]


def test_a_prompt_of_one_token_has_none_and_the_answer_is_that_of_an_unscored_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(scoring(1, PROMPT[:1], top=0))
    engine.submit(scoring(2))
    engine.submit(plain(3))
    found: dict[int, list[int]] = {}
    while engine.has_work:
        for message in engine.step():
            if isinstance(message, PromptLogprobs):
                assert len(message.rows) == (0 if message.sequence == 1 else len(PROMPT) - 1)
            if isinstance(message, Step):
                for row in message.rows:
                    found.setdefault(row.sequence, []).extend(row.token_ids)
    assert found[2] == found[3][:2]


def test_a_cancelled_prompt_leaves_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=8)
    engine.submit(scoring(1))
    engine.step()
    assert engine.held["bytes"] > 0
    engine.cancel(1)
    assert not any(engine.held.values())
