"""The engine on tiny models of real architectures: right answers, and every way a sequence can end."""

import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.utils import load_model

from bramley.domain.requests import Grammar
from bramley.domain.sampling import Sampling
from bramley.domain.wire import Failed, Finished, Step, Submit
from tests.engine.conftest import MakeEngine
from tests.support.oracle import GREEDY, Oracle, collect, finished_of, generate, run_to_end, ties_until_equal

LENGTHS = (1, 2, 15, 16, 17, 40, 90, 200)
ANSWER = 24


def prompt_of(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((index * 37 + salt * 101 + 11) % 500 + 3 for index in range(length))


def submit(number: int, length: int = 20, max_tokens: int = ANSWER, **more: Any) -> Submit:
    return Submit(
        sequence=number,
        token_ids=prompt_of(length, number),
        max_tokens=max_tokens,
        **{"sampling": GREEDY, **more},
    )


@pytest.fixture(scope="module")
def oracles(llama_model: Any) -> dict[int, Oracle]:
    """What mlx-lm answers to each of eight prompts; the key is the sequence number."""
    return {n: Oracle(llama_model, prompt_of(length, n), ANSWER) for n, length in enumerate(LENGTHS)}


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_greedy_tokens_are_those_of_mlx_lm_alone_and_among_eight(
    make_engine: MakeEngine, oracles: dict[int, Oracle], chunk: int
) -> None:
    engine = make_engine(prefill_chunk=chunk)
    alone = {n: generate(engine, prompt_of(length, n), ANSWER) for n, length in enumerate(LENGTHS)}
    for n, length in enumerate(LENGTHS):
        assert engine.submit(submit(n, length)) == []
    together = run_to_end(engine)
    ties = sum(
        ties_until_equal(engine, prompt_of(length, n), answers[n], oracles[n])
        for answers in (alone, together)
        for n, length in enumerate(LENGTHS)
    )
    assert ties <= 0.01 * 2 * ANSWER * len(LENGTHS)


@pytest.mark.parametrize("kind", ["tiny_gemma3", "tiny_mamba2"])
def test_rotating_and_state_caches_answer_as_mlx_lm_does(
    make_engine: MakeEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    model = load_model(path)[0]
    engine = make_engine(model, prefill_chunk=16)
    lengths = (1, 17, 90)
    for n, length in enumerate(lengths):
        engine.submit(submit(n, length))
    answers = run_to_end(engine)
    for n, length in enumerate(lengths):
        oracle = Oracle(model, prompt_of(length, n), ANSWER)
        assert ties_until_equal(engine, prompt_of(length, n), answers[n], oracle) <= 1


def test_a_step_reads_at_most_one_chunk_while_the_others_decode(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=16)
    engine.submit(submit(1, 5))
    engine.step()
    engine.submit(submit(2, 40))
    engine.submit(submit(3, 40))
    for total in (16, 32, 40, 56, 72):
        step = engine.step()[0]
        assert isinstance(step, Step)
        assert 1 in [row.sequence for row in step.rows]
        assert sum(sequence.prefilled_tokens for sequence in engine.stats().sequences) == 5 + total


def test_a_stop_token_ends_the_answer_is_counted_and_is_not_in_a_row(
    make_engine: MakeEngine, oracles: dict[int, Oracle]
) -> None:
    engine = make_engine()
    stop = oracles[6].tokens[5]
    first = oracles[6].tokens.index(stop)
    engine.submit(submit(6, LENGTHS[6], stop_token_ids=(stop,)))
    answers: dict[int, list[int]] = {}
    messages = []
    while engine.has_work:
        messages = engine.step()
        collect(messages, answers)
    assert answers.get(6, []) == oracles[6].tokens[:first]
    (finished,) = finished_of(messages)
    assert (finished.reason, finished.stop_token_id, finished.completion_tokens) == ("stop", stop, first + 1)
    assert finished.prompt_tokens == LENGTHS[6]


def test_max_tokens_ends_the_answer_with_length_after_its_last_row(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(submit(1, max_tokens=1))
    step, finished = engine.step()
    assert isinstance(step, Step)
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.completion_tokens, finished.stop_token_id) == ("length", 1, None)
    assert not engine.has_work


def test_min_tokens_keeps_stop_tokens_away_until_then(make_engine: MakeEngine, oracles: dict[int, Oracle]) -> None:
    engine = make_engine()
    stop = oracles[6].tokens[0]
    engine.submit(submit(6, LENGTHS[6], stop_token_ids=(stop,), sampling=Sampling(temperature=0.0, min_tokens=4)))
    answer = run_to_end(engine)[6]
    assert len(answer) >= 4
    assert stop not in answer[:4]


def test_ignore_eos_lets_the_models_end_token_pass_and_the_clients_stop_token_not(make_engine: MakeEngine) -> None:
    engine = make_engine()
    only_eos = Sampling(temperature=0.0, ignore_eos=True, logit_bias={2: 1e4})
    engine.submit(submit(1, max_tokens=5, sampling=only_eos, stop_token_ids=(2,)))
    assert run_to_end(engine)[1] == [2] * 5
    only_seven = Sampling(temperature=0.0, ignore_eos=True, logit_bias={7: 1e4})
    engine.submit(submit(2, max_tokens=5, sampling=only_seven, stop_token_ids=(2, 7)))
    assert 2 not in run_to_end(engine)


def test_logprobs_are_natural_come_best_first_and_only_when_asked(make_engine: MakeEngine, llama_model: Any) -> None:
    engine = make_engine()
    sampling = Sampling(temperature=0.0, logprobs=20)
    engine.submit(submit(1, max_tokens=1, sampling=sampling))
    engine.submit(submit(2, max_tokens=1))
    step = engine.step()[0]
    assert isinstance(step, Step)
    asked, not_asked = sorted(step.rows, key=lambda row: row.sequence)
    assert not_asked.logprobs == ()
    logits = llama_model(mx.array([prompt_of(20, 1)]))[0, -1]
    wanted = logits - mx.logsumexp(logits)
    (logprobs,) = asked.logprobs
    assert logprobs.top_ids[0] == asked.token_ids[0]
    assert logprobs.chosen == logprobs.top[0]
    assert list(logprobs.top) == sorted(logprobs.top, reverse=True)
    assert list(logprobs.top) == pytest.approx(mx.sort(wanted)[-20:][::-1].tolist(), abs=1e-4)
    assert [wanted[token].item() for token in logprobs.top_ids] == pytest.approx(list(logprobs.top), abs=1e-4)


def test_cancel_takes_effect_while_queued_between_chunks_and_while_decoding(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=8, max_num_seqs=2)
    engine.submit(submit(1, 5))
    engine.step()
    engine.submit(submit(2, 100))
    engine.submit(submit(3, 5))
    engine.step()
    assert [sequence.phase for sequence in engine.stats().sequences] == ["generation", "prefill", "queued"]
    for number, generated in ((3, 0), (2, 0), (1, 1)):
        (finished,) = finished_of(engine.cancel(number))
        assert (finished.sequence, finished.reason, finished.completion_tokens) == (number, "cancelled", generated)
    assert not engine.has_work
    assert engine.stats().sequences == ()


def test_a_cancelled_slot_goes_to_the_one_who_waits_in_the_next_step(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.submit(submit(1))
    engine.submit(submit(2))
    engine.step()
    engine.cancel(1)
    assert engine.step() == []
    assert [row.sequence for message in engine.step() if isinstance(message, Step) for row in message.rows] == [2]


@pytest.mark.parametrize(("keep", "counted"), [(0, 0), (1, 1), (50, 2), (None, 2)])
def test_cancel_with_keep_tokens_counts_the_answer_up_to_there(
    make_engine: MakeEngine, keep: int | None, counted: int
) -> None:
    engine = make_engine()
    engine.submit(submit(1))
    for _ in range(3):
        engine.step()
    (finished,) = finished_of(engine.cancel(1, keep))
    assert (finished.reason, finished.completion_tokens) == ("cancelled", counted)


def test_a_late_cancel_is_ignored(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit(submit(1, max_tokens=1))
    engine.step()
    assert engine.cancel(1, 0) == []
    assert engine.cancel(99) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token_ids": ()}, "prompt is empty"),
        ({"max_tokens": 0}, "at least 1"),
        ({"max_tokens": 2029}, "20 tokens and the answer may have 2029"),
        ({"token_ids": (5, 512)}, "vocabulary of 512"),
        ({"token_ids": (5, -1)}, "vocabulary of 512"),
        ({"grammar": Grammar("json_object")}, "grammar"),
    ],
)
def test_a_request_that_cannot_be_served_fails_with_a_sentence(
    make_engine: MakeEngine, change: dict[str, Any], words: str
) -> None:
    engine = make_engine()
    fields = {"sequence": 1, "token_ids": prompt_of(20), "max_tokens": 5, **change}
    (failed,) = engine.submit(Submit(**fields))
    assert isinstance(failed, Failed)
    assert (failed.kind, failed.sequence) == ("request", 1)
    assert words in failed.message
    assert not engine.has_work


def test_a_prompt_and_answer_that_fill_the_context_exactly_are_served(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=2048)
    assert generate(engine, prompt_of(2045), 3) != []


def test_a_full_queue_refuses_at_once_and_takes_again_when_there_is_room(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1, max_queue=1)
    assert engine.submit(submit(1)) == []
    assert engine.submit(submit(2)) == []
    (failed,) = engine.submit(submit(3))
    assert isinstance(failed, Failed)
    assert failed.kind == "overloaded"
    engine.cancel(1)
    assert engine.submit(submit(4)) == []
    assert set(run_to_end(engine)) == {2, 4}


def test_abort_fails_everything_in_flight_and_the_next_request_is_served(
    make_engine: MakeEngine, oracles: dict[int, Oracle]
) -> None:
    engine = make_engine(max_num_seqs=2, prefill_chunk=8)
    for number in (1, 2, 3):
        engine.submit(submit(number, 30))
    engine.step()
    failed = engine.abort("step", "It broke.")
    assert {(f.kind, f.message, f.sequence) for f in failed if isinstance(f, Failed)} == {
        ("step", "It broke.", number) for number in (1, 2, 3)
    }
    assert not engine.has_work
    assert generate(engine, prompt_of(LENGTHS[3], 3), ANSWER) == oracles[3].tokens


def test_a_seeded_answer_is_the_same_alone_and_among_others(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=16)
    hot = Sampling(temperature=1.0, top_p=0.95, seed=7)
    engine.submit(submit(1, sampling=hot))
    alone = run_to_end(engine)[1]
    for number in (4, 1, 5):
        engine.submit(submit(number, sampling=hot if number == 1 else Sampling(seed=number)))
    assert run_to_end(engine)[1] == alone
    engine.submit(submit(1, sampling=Sampling(temperature=1.0, top_p=0.95, seed=8)))
    assert run_to_end(engine)[1] != alone


def test_timings_and_counters_add_up(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=16, max_num_seqs=1)
    for number in (1, 2):
        engine.submit(submit(number, 20, 4))
    finished: list[Finished] = []
    while engine.has_work:
        finished += finished_of(engine.step())
    stats = engine.stats()
    assert (stats.prompt_tokens, stats.completion_tokens, stats.finished) == (40, 8, 2)
    assert (stats.running, stats.waiting, stats.sequences) == (0, 0, ())
    first, second = finished
    assert first.timings.prefill_s > 0
    assert first.timings.decode_s > 0
    assert second.timings.queue_s >= first.timings.prefill_s + first.timings.decode_s


def test_memory_is_flat_over_two_hundred_sequences_that_come_and_go(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=16, max_num_seqs=8)
    choose = random.Random(3)

    def wave(start: int) -> int:
        for number in range(start, start + 20):
            engine.submit(submit(number, choose.randrange(1, 200), choose.randrange(1, 10)))
            engine.step()
            engine.cancel(choose.randrange(start, number + 1))
        run_to_end(engine)
        return mx.get_active_memory()

    before = wave(0)
    after = [wave(start) for start in range(20, 220, 20)]
    assert max(after) <= before
    assert engine.stats().memory.active == after[-1]
