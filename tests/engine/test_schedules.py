"""Any order of joins, cancels, preemptions and steps: nothing is left behind."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.utils import load_model

from bramley.domain.requests import Priority
from bramley.domain.sampling import Sampling
from bramley.domain.wire import EngineOptions, Failed, Submit
from bramley.engine.engine import Engine, ModelLimits
from tests.support.oracle import collect, finished_of
from tests.support.tiny_models import TINY_LLAMA, write_model

MINUTE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "eos_token_id": 31,
}
SAMPLING = Sampling(temperature=0.0, ignore_eos=True)

PRIORITIES = st.sampled_from(["high", "normal", "batch"])
JOIN = st.tuples(st.just("join"), st.integers(1, 60), st.integers(1, 25), PRIORITIES)
CANCEL = st.tuples(st.just("cancel"), st.integers(0, 20))
STEPS = st.tuples(st.just("step"), st.integers(1, 8))
COURSES = st.lists(st.one_of(JOIN, JOIN, CANCEL, STEPS), min_size=3, max_size=25)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """Room for about 200 tokens, so that some must wait and some are sent back."""
    path: Path = write_model(tmp_path_factory.mktemp("minute"), {**TINY_LLAMA, **MINUTE})
    model = load_model(path)[0]
    per_token = 2 * 8 * 4
    limits = ModelLimits(context_length=512, kv_bytes=per_token * 200)
    return Engine(model, limits, EngineOptions(max_num_seqs=4, max_queue=4, prefill_chunk=16, target_gap_ms=1e9))


class Course:
    """What one course of operations did, and what it should have."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.answers: dict[int, list[int]] = {}
        self.wanted: dict[int, int] = {}
        self.ended: set[int] = set()

    def join(self, length: int, max_tokens: int, priority: Priority) -> None:
        number = len(self.wanted)
        prompt = tuple((7 * index + number) % 31 for index in range(length))
        self.wanted[number] = max_tokens
        refused = self.engine.submit(
            Submit(sequence=number, token_ids=prompt, max_tokens=max_tokens, sampling=SAMPLING, priority=priority)
        )
        if refused:
            assert [message.kind for message in refused if isinstance(message, Failed)] == ["overloaded"]
            self.ended.add(number)

    def cancel(self, number: int) -> None:
        finished = finished_of(self.engine.cancel(number))
        assert len(finished) == (number in self.wanted and number not in self.ended)
        self.ended.update(one.sequence for one in finished)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            if not self.engine.has_work:
                return
            messages = self.engine.step()
            assert not [message for message in messages if isinstance(message, Failed)]
            collect(messages, self.answers)
            for one in finished_of(messages):
                assert one.completion_tokens == len(self.answers[one.sequence]) == self.wanted[one.sequence]
                assert one.sequence not in self.ended
                self.ended.add(one.sequence)


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(COURSES)
def test_after_any_course_nothing_is_held_and_memory_is_flat(engine: Engine, operations: list[tuple[Any, ...]]) -> None:
    mx.clear_cache()
    before = mx.get_active_memory()
    course = Course(engine)
    for name, *arguments in operations:
        getattr(course, name)(*arguments)
    for _ in range(5000):
        course.step()
        if not engine.has_work:
            break
    assert course.ended == set(course.wanted)
    assert not any(engine.held.values()), engine.held
    assert mx.get_active_memory() <= before
