"""The text runner in this process: what it says of a model, and which messages it takes."""

from pathlib import Path
from typing import Any

import pytest

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import (
    Cancel,
    CancelJob,
    ComputeOptions,
    Embed,
    EngineOptions,
    Failed,
    Finished,
    Load,
    Phase,
    Prepare,
    Progress,
    Ready,
    Run,
    Submit,
    ToFront,
)
from bramley.runners.text import TextRunner


class Listener:
    """Implements ``Host`` by keeping what it is told."""

    def __init__(self) -> None:
        self.messages: list[ToFront] = []

    def emit(self, message: ToFront) -> None:
        self.messages.append(message)

    def progress(self, phase: Phase, done: float, total: float, note: str = "", job: int = 0) -> None:
        self.messages.append(Progress(phase, done, total, note, job))


def loaded(path: Path, listener: Listener, **engine: Any) -> tuple[TextRunner, Ready]:
    runner = TextRunner()
    return runner, runner.load(Load(path=str(path), engine=EngineOptions(**engine)), listener)


def test_ready_tells_the_facts_of_the_model(tiny_llama: Path) -> None:
    runner, ready = loaded(tiny_llama, Listener())
    assert (ready.path, ready.kind, ready.model_type) == (str(tiny_llama), "text", "llama")
    assert (ready.context_length, ready.vocab_size) == (2048, 512)
    assert (ready.eos_token_ids, ready.bos_token_id) == ((2,), 1)
    assert ready.dtype == "float32"
    # Keys and values of 2 layers, 2 heads, 16 wide, 4 bytes each.
    assert ready.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert ready.memory.weights >= (tiny_llama / "model.safetensors").stat().st_size * 0.9
    assert (runner.has_work, runner.phase) == (False, "idle")


def test_the_context_may_be_made_smaller_but_not_larger_than_the_model_allows(tiny_llama: Path) -> None:
    assert loaded(tiny_llama, Listener(), context_length=100)[1].context_length == 100
    assert loaded(tiny_llama, Listener(), context_length=10**6)[1].context_length == 2048


def test_a_request_is_answered_and_cancelled_through_messages(tiny_llama: Path) -> None:
    listener = Listener()
    runner, _ = loaded(tiny_llama, listener)
    runner.handle(Submit(sequence=1, token_ids=(5, 6), max_tokens=3))
    runner.handle(Submit(sequence=2, token_ids=(5, 6), max_tokens=300))
    assert (runner.has_work, runner.phase) == (True, "prefill")
    runner.step()
    assert runner.phase == "decode"
    runner.handle(Cancel(2, 0))
    while runner.has_work:
        runner.step()
    finished = [message for message in listener.messages if isinstance(message, Finished)]
    assert [(one.sequence, one.reason, one.completion_tokens) for one in finished] == [
        (2, "cancelled", 0),
        (1, "length", 3),
    ]
    assert runner.stats().finished == 2


def test_jobs_of_other_modalities_are_refused_with_a_sentence(tiny_llama: Path) -> None:
    listener = Listener()
    runner, _ = loaded(tiny_llama, listener)
    listener.messages.clear()
    for job in (Embed(1, ((5,),)), Prepare(2, b"[]"), Run(3, "speech"), CancelJob(3)):
        runner.handle(job)
    failed = [message for message in listener.messages if isinstance(message, Failed)]
    assert [(one.job, one.kind) for one in failed] == [(1, "request"), (2, "request"), (3, "request")]
    assert failed[0].message == "This model generates text; it has no embed jobs."


def test_shutdown_and_abort_end_what_is_in_flight(tiny_llama: Path) -> None:
    listener = Listener()
    runner, _ = loaded(tiny_llama, listener)
    runner.handle(Submit(sequence=1, token_ids=(5, 6), max_tokens=300))
    runner.step()
    runner.abort("step", "It broke.")
    assert listener.messages[-1] == Failed(kind="step", message="It broke.", sequence=1)
    runner.handle(Submit(sequence=2, token_ids=(5, 6), max_tokens=300))
    runner.shutdown()
    last = listener.messages[-1]
    assert isinstance(last, Finished)
    assert (last.sequence, last.reason) == (2, "cancelled")
    assert not runner.has_work


def test_a_directory_that_is_missing_or_empty_is_a_load_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(ModelLoadError):
            TextRunner().load(Load(path=str(path), compute=ComputeOptions()), Listener())
