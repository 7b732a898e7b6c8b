"""What went wrong in other servers, at the engine: the numbers are in tests/data/field/engine.json."""

import json
from pathlib import Path
from typing import Any

import pytest

from bramley.domain.sampling import Sampling
from bramley.domain.wire import Failed, Finished, Step, Submit
from bramley.engine.engine import Engine
from tests.engine.conftest import MakeEngine
from tests.support.oracle import GREEDY, Oracle, collect, finished_of, generate, run_to_end, ties_until_equal

CASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "field" / "engine.json").read_text()
)
ENDLESS = Sampling(temperature=0.0, ignore_eos=True)


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((index * 37 + salt * 101 + 11) % 500 + 3 for index in range(length))


def submit(number: int, length: int, max_tokens: int, sampling: Sampling = ENDLESS, **more: Any) -> Submit:
    prompt = prompt_of(length, number)
    return Submit(sequence=number, token_ids=prompt, max_tokens=max_tokens, sampling=sampling, **more)


def step_until(engine: Engine, answers: dict[int, list[int]], number: int, count: int = 1) -> int:
    """Step until a sequence has so many tokens; the steps that took."""
    steps = 0
    while len(answers.get(number, [])) < count:
        collect(engine.step(), answers)
        steps += 1
    return steps


def test_h1_a_stream_gets_a_token_in_every_step_while_a_long_prompt_is_read(make_engine: MakeEngine) -> None:
    case = CASES["H1"]
    engine = make_engine(prefill_chunk=case["chunk"])
    answers: dict[int, list[int]] = {}
    engine.submit(submit(1, 10, 500))
    step_until(engine, answers, 1, case["after_tokens"])
    engine.submit(submit(2, case["prompt"], 5))
    before = len(answers[1])
    steps = step_until(engine, answers, 2)
    assert len(answers[1]) - before == steps >= case["least_tokens_meanwhile"]
    engine.cancel_all()


def test_h2_a_prompt_is_read_while_others_decode_and_a_short_one_does_not_wait_for_it(make_engine: MakeEngine) -> None:
    case = CASES["H2"]
    engine = make_engine(prefill_chunk=case["chunk"])
    answers: dict[int, list[int]] = {}
    for number in range(case["streams"]):
        engine.submit(submit(number, 10, case["answer"]))
    step_until(engine, answers, case["streams"] - 1, 2)
    engine.submit(submit(100, case["prompt"], 5))
    engine.step()
    engine.submit(submit(200, case["short_prompt"], 5))
    assert step_until(engine, answers, 200) <= 2
    assert 100 not in answers
    step_until(engine, answers, 100)
    assert max(len(answers[number]) for number in range(case["streams"])) < case["answer"] / 2
    engine.cancel_all()


def test_h3_requests_with_other_settings_share_steps_and_keep_their_stop_tokens(make_engine: MakeEngine) -> None:
    case = CASES["H3"]
    engine = make_engine()
    for number, (sampling, stops) in enumerate(zip(case["samplings"], case["stops"], strict=True)):
        engine.submit(
            submit(number, 10, case["answer"], Sampling(**sampling, logit_bias={41: 2.0}), stop_token_ids=tuple(stops))
        )
    shared = 0
    answers: dict[int, list[int]] = {}
    finished: list[Finished] = []
    while engine.has_work:
        messages = engine.step()
        shared += any(isinstance(message, Step) and len(message.rows) == 2 for message in messages)
        collect(messages, answers)
        finished += finished_of(messages)
    assert shared > 1
    for one in finished:
        stops = case["stops"][one.sequence]
        assert not set(stops) & set(answers[one.sequence])
        assert one.stop_token_id in ([None] if one.reason == "length" else stops)


def test_h4_answers_in_a_batch_are_those_alone(make_engine: MakeEngine, llama_model: Any) -> None:
    case = CASES["H4"]
    engine = make_engine(prefill_chunk=64)
    for number, (length, answer) in enumerate(zip(case["prompts"], case["answers"], strict=True)):
        engine.submit(submit(number, length, answer, GREEDY))
    answers = run_to_end(engine)
    for number, (length, answer) in enumerate(zip(case["prompts"], case["answers"], strict=True)):
        oracle = Oracle(llama_model, prompt_of(length, number), answer)
        assert ties_until_equal(engine, prompt_of(length, number), answers[number], oracle) <= 1


@pytest.mark.parametrize(("prompt", "answer"), CASES["F4"]["cases"])
def test_f4_what_exceeds_the_context_is_refused_at_once_with_the_numbers(
    make_engine: MakeEngine, prompt: int, answer: int
) -> None:
    (failed,) = make_engine().submit(submit(1, prompt, answer))
    assert isinstance(failed, Failed)
    assert failed.kind == "request"
    for number in (prompt, answer, CASES["F4"]["context"]):
        assert str(number) in failed.message


def test_f5_a_request_too_large_for_memory_is_refused_and_the_next_is_served(make_engine: MakeEngine) -> None:
    case = CASES["F5"]
    engine = make_engine(kv_bytes=make_engine().kv_bytes_per_token * case["room_tokens"])
    (failed,) = engine.submit(submit(1, case["oversized"], 10))
    assert isinstance(failed, Failed)
    assert failed.kind == "request"
    assert failed.message.count("MiB") == 2
    assert not engine.has_work
    assert len(generate(engine, prompt_of(case["small"]), 10)) > 0


def test_g5_cancelling_one_of_a_batch_leaves_the_other_as_it_would_be_alone(
    make_engine: MakeEngine, llama_model: Any
) -> None:
    case = CASES["G5"]
    engine = make_engine()
    for number, length in enumerate(case["prompts"]):
        engine.submit(submit(number, length, case["answer"], GREEDY))
    answers: dict[int, list[int]] = {}
    step_until(engine, answers, 0, case["cancel_after"])
    collect(engine.cancel(0), answers)
    run_to_end(engine, answers)
    prompt = prompt_of(case["prompts"][1], 1)
    oracle = Oracle(llama_model, prompt, case["answer"])
    assert ties_until_equal(engine, prompt, answers[1], oracle) == 0
