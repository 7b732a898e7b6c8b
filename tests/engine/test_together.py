"""Rows that decode together: the tokens of mlx-lm alone, whoever joins and leaves, and nothing of another row."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models.cache import ConcatenateKVCache, KVCache
from mlx_lm.utils import load_model

from bramley.domain.sampling import Sampling
from bramley.domain.wire import Logprobs, Step, Submit
from bramley.engine.engine import Engine
from tests.engine.conftest import MakeEngine
from tests.support.oracle import GREEDY, Oracle, collect, run_to_end, ties_until_equal

LENGTHS = (1, 2, 3, 5, 8, 13, 15, 16, 17, 21, 31, 32, 33, 34, 40, 55, 63, 64, 65, 90, 128, 144, 200, 400)
# As many for a model that takes its time.
SHORTER = (*(length for length in LENGTHS if length <= 90), 7, 25, 48, 120)
ANSWER = 12

Oracles = tuple[Any, dict[int, Oracle]]


def prompt_of(length: int, salt: int) -> tuple[int, ...]:
    return tuple((index * 37 + salt * 101 + 11) % 500 + 3 for index in range(length))


def submit(number: int, length: int, max_tokens: int = ANSWER, sampling: Sampling = GREEDY, **more: Any) -> Submit:
    prompt = prompt_of(length, number)
    return Submit(sequence=number, token_ids=prompt, max_tokens=max_tokens, sampling=sampling, **more)


def oracles_of(model: Any, lengths: Sequence[int]) -> dict[int, Oracle]:
    return {n: Oracle(model, prompt_of(length, n), ANSWER) for n, length in enumerate(lengths)}


def with_passers_by(engine: Engine, lengths: Sequence[int], seed: int) -> dict[int, list[int]]:
    """Submit the prompts at random steps, and others that are cancelled at random steps."""
    choose = random.Random(seed)
    waiting = list(enumerate(lengths))
    choose.shuffle(waiting)
    answers: dict[int, list[int]] = {}
    passers_by: list[int] = []
    while waiting or engine.has_work:
        if waiting and (not engine.has_work or choose.random() < 0.3):
            assert engine.submit(submit(*waiting.pop())) == []
        if waiting and choose.random() < 0.15:
            passers_by.append(1000 + len(passers_by))
            engine.submit(submit(passers_by[-1], choose.randrange(1, 90)))
        if passers_by and choose.random() < 0.2:
            collect(engine.cancel(choose.choice(passers_by)), answers)
        if engine.has_work:
            collect(engine.step(), answers)
    return answers


def assert_equal_but_for_ties(
    engine: Engine, lengths: Sequence[int], answers: dict[int, list[int]], oracles: dict[int, Oracle]
) -> None:
    ties = sum(ties_until_equal(engine, prompt_of(k, n), answers[n], oracles[n]) for n, k in enumerate(lengths))
    assert ties <= max(1, 0.01 * ANSWER * len(lengths))
    assert not any(engine.held.values())


def alone(engine: Engine, number: int, length: int) -> list[int]:
    assert engine.submit(submit(number, length)) == []
    return run_to_end(engine)[number]


@pytest.fixture(scope="module")
def smollm2_oracles(smollm2: Path) -> Oracles:
    model = load_model(smollm2)[0]
    return model, oracles_of(model, SHORTER)


@pytest.fixture(scope="module")
def oracles(llama_model: Any) -> dict[int, Oracle]:
    return oracles_of(llama_model, LENGTHS)


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_twenty_four_prompts_joining_and_leaving_eight_at_a_time_answer_as_each_does_alone(
    make_engine: MakeEngine, oracles: dict[int, Oracle], chunk: int
) -> None:
    engine = make_engine(prefill_chunk=chunk, max_num_seqs=8)
    assert engine.notes == ()
    assert_equal_but_for_ties(engine, LENGTHS, with_passers_by(engine, LENGTHS, chunk), oracles)


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
def test_a_real_model_does_so_too(make_engine: MakeEngine, smollm2_oracles: Oracles, chunk: int) -> None:
    model, oracles = smollm2_oracles
    engine = make_engine(model, prefill_chunk=chunk, max_num_seqs=8)
    answers = with_passers_by(engine, SHORTER, chunk)
    if chunk == 64:
        # The same prompts one at a time.
        assert_equal_but_for_ties(engine, SHORTER, {n: alone(engine, n, k) for n, k in enumerate(SHORTER)}, oracles)
    assert_equal_but_for_ties(engine, SHORTER, answers, oracles)


@pytest.mark.parametrize("chunk", [1, 16, 64, 512])
@pytest.mark.parametrize("kind", ["tiny_gemma3", "tiny_mamba2"])
def test_rotating_and_state_caches_batch_together_too(
    make_engine: MakeEngine, kind: str, chunk: int, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(kind)
    model = load_model(path)[0]
    engine = make_engine(model, prefill_chunk=chunk, max_num_seqs=8)
    assert engine.notes == ()
    assert_equal_but_for_ties(engine, LENGTHS, with_passers_by(engine, LENGTHS, chunk), oracles_of(model, LENGTHS))


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_gemma3", "tiny_mamba2"])
def test_prompts_that_arrive_at_once_are_read_in_few_passes_and_answer_as_each_does_alone(
    make_engine: MakeEngine, kind: str, request: pytest.FixtureRequest
) -> None:
    model = load_model(request.getfixturevalue(kind))[0]
    engine = make_engine(model, prefill_chunk=2048)
    for number, length in enumerate(LENGTHS):
        engine.submit(submit(number, length))
    waves = engine._batch.waves([(one, one.prompt_left) for one in engine._scheduler.waiting])
    assert sum(map(len, waves)) == len(LENGTHS)
    assert len(waves) < len(LENGTHS) / 3
    assert_equal_but_for_ties(engine, LENGTHS, run_to_end(engine), oracles_of(model, LENGTHS))


def test_rows_share_a_pass_and_a_row_alone_has_no_padding_and_no_mask(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number, length in ((1, 20), (2, 22)):
        engine.submit(submit(number, length))
    while len(engine.stats().sequences) == 2 and engine.stats().completion_tokens < 8:
        engine.step()
    assert [len(group) for group in engine._batch.groups] == [2]
    engine.cancel(1)
    engine.step()
    assert [type(layer).__name__ for layer in engine._batch._groups[0]._layers] == ["KVCache", "KVCache"]
    run_to_end(engine)


def test_rows_of_very_unlike_lengths_decode_in_passes_of_their_own_and_meet_when_they_are_alike(
    make_engine: MakeEngine, llama_model: Any
) -> None:
    engine = make_engine(prefill_chunk=2048)
    engine._batch._cheap_padding = 0
    lengths = {1: 1000, 2: 900, 3: 40, 4: 12, 5: 60}
    for number, length in lengths.items():
        engine.submit(submit(number, length, 700 if number == 4 else 40))
    answers: dict[int, list[int]] = {}
    for _ in range(3):
        collect(engine.step(), answers)
    passes = [sorted(group) for group in engine._batch.groups]
    assert len(passes) > 1
    assert all(max(group) <= 4 * min(group) or len(group) == 1 for group in passes)
    run_to_end(engine, answers)
    for number in (1, 2, 3, 5):
        oracle = Oracle(llama_model, prompt_of(lengths[number], number), 40)
        assert ties_until_equal(engine, prompt_of(lengths[number], number), answers[number], oracle) <= 1


def test_what_is_copied_when_a_row_joins_has_little_room_for_tokens_to_come(make_engine: MakeEngine) -> None:
    engine = make_engine(prefill_chunk=512)
    answers: dict[int, list[int]] = {}
    for number, length in ((1, 40), (2, 50), (3, 60), (4, 300)):
        assert engine.submit(submit(number, length, 300)) == []
        for _ in range(3):
            collect(engine.step(), answers)
    groups = [group._layers for group in engine._batch._groups if group.slots > 1]
    assert groups and all(layer.keys.shape[2] - layer.size() <= 64 for layers in groups for layer in layers)
    engine.cancel_all()


def test_dead_rows_are_kept_until_a_quarter_is_dead_or_somebody_joins(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for number in range(8):
        engine.submit(submit(number, 20, 200))
    while any(one.generated_tokens < 2 for one in engine.stats().sequences):
        engine.step()
    slots = []
    for number in range(3):
        engine.cancel(number)
        engine.step()
        slots.append(engine._batch.slots)
    assert slots == [8, 8, 5]
    engine.cancel(3)
    engine.submit(submit(9, 20, 200))
    engine.step()
    engine.step()
    assert engine._batch.slots == 5
    engine.cancel_all()
    assert not any(engine.held.values())


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_gemma3", "tiny_mamba2"])
def test_no_row_sees_anothers_tokens(make_engine: MakeEngine, kind: str, request: pytest.FixtureRequest) -> None:
    """The same course with other neighbours of the same lengths: every log-probability is the same to the last bit."""
    model = load_model(request.getfixturevalue(kind))[0]
    engine = make_engine(model, prefill_chunk=16)
    sampling = Sampling(temperature=0.0, ignore_eos=True, logprobs=5)

    def course(sentinel: int) -> list[Logprobs]:
        """Sequence 0 among neighbours that say nothing but ``sentinel``; they come before and after it and leave."""
        seen: list[Logprobs] = []
        lengths = (30, 7, 50, 45, 3, 33)
        for step in range(60):
            if step % 4 == 0 and step // 4 < len(lengths):
                number = (step // 4 + 5) % 6
                token_ids = prompt_of(40, 0) if number == 0 else (sentinel,) * lengths[number]
                engine.submit(Submit(sequence=number, token_ids=token_ids, max_tokens=30, sampling=sampling))
            if step in (22, 30):
                engine.cancel(step // 10)
            if engine.has_work:
                messages = engine.step()
                rows = [row for message in messages if isinstance(message, Step) for row in message.rows]
                seen += [logprobs for row in rows if row.sequence == 0 for logprobs in row.logprobs]
        engine.cancel_all()
        return seen

    first = course(11)
    assert len(first) == 30
    assert course(499) == first
    assert course(3) == first


@pytest.mark.parametrize("starts_late", [True, False])
@pytest.mark.parametrize("chunk", [7, 64])
def test_a_step_ahead_gives_the_very_answers_of_step_by_step(
    make_engine: MakeEngine, chunk: int, starts_late: bool
) -> None:
    """Started late as on a CPU, and early as on a GPU."""
    samplings = [
        GREEDY,
        Sampling(temperature=0.9, top_p=0.9, seed=3),
        Sampling(temperature=0.7, repetition_penalty=1.3, repetition_context=8, seed=4),
        Sampling(temperature=1.1, presence_penalty=0.7, frequency_penalty=0.4, seed=5),
        Sampling(temperature=1.0, min_tokens=6, seed=6, top_k=5),
        Sampling(temperature=0.0, logit_bias={9: 3.0}, frequency_penalty=0.8, seed=7),
    ]

    def answers(ahead: bool) -> dict[int, list[int]]:
        engine = make_engine(prefill_chunk=chunk, ahead=ahead)
        engine._starts_late = starts_late
        for number, sampling in enumerate(samplings):
            stops = tuple(range(100 + 7 * number, 400, 41))
            engine.submit(submit(number, 5 + 9 * number, 30, sampling, stop_token_ids=stops))
        return run_to_end(engine)

    assert answers(True) == answers(False)


def test_a_preempted_answer_goes_on_as_if_nothing_had_happened(make_engine: MakeEngine, llama_model: Any) -> None:
    per_token = make_engine().kv_bytes_per_token
    engine = make_engine(kv_bytes=per_token * 2 * 340)
    for number in (1, 2):
        engine.submit(submit(number, 30, 400, Sampling(temperature=0.0, ignore_eos=True)))
    answers: dict[int, list[int]] = {}
    preempted = False
    while engine.has_work:
        collect(engine.step(), answers)
        preempted = preempted or "queued" in [one.phase for one in engine.stats().sequences]
    assert preempted
    assert [len(answers[number]) for number in (1, 2)] == [400, 400]
    for number in (1, 2):
        alone = Oracle(llama_model, prompt_of(30, number), 400)
        until = next((n for n, (a, b) in enumerate(zip(answers[number], alone.tokens, strict=True)) if a != b), None)
        assert until is None or alone.margins[until] < 1e-3


class OneByOne:
    """A model whose caches know no batch."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.layers = model.layers

    def make_cache(self) -> list[Any]:
        return [ConcatenateKVCache() for _ in self.layers]

    def parameters(self) -> Any:
        return self._model.parameters()

    def __call__(self, inputs: Any, *, cache: Any) -> Any:
        return self._model(inputs, cache=cache)


class NoTwo(OneByOne):
    """A model that cannot compute two rows, which only shows when it is tried."""

    def make_cache(self) -> list[Any]:
        return [KVCache() for _ in self.layers]

    def __call__(self, inputs: Any, *, cache: Any) -> Any:
        if inputs.shape[0] > 1:
            raise ValueError("one row only")
        return super().__call__(inputs, cache=cache)


@pytest.mark.parametrize(
    ("wrapper", "reason"), [(OneByOne, "its caches cannot be merged"), (NoTwo, "a batch raised ValueError")]
)
def test_a_model_that_cannot_batch_runs_row_by_row_in_the_same_loop_and_says_so(
    make_engine: MakeEngine, llama_model: Any, oracles: dict[int, Oracle], wrapper: Any, reason: str
) -> None:
    engine = make_engine(wrapper(llama_model), prefill_chunk=64)
    assert engine.notes == (f"Requests to this model decode one by one: {reason}.",)
    lengths = LENGTHS[:8]
    for number, length in enumerate(lengths):
        engine.submit(submit(number, length))
    assert_equal_but_for_ties(engine, lengths, run_to_end(engine), oracles)
