"""Token generation for many requests at once. Knows token ids only: no text, no HTTP, no chat."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from bramley.domain.errors import Overloaded
from bramley.domain.wire import EngineOptions, Failed, FailureKind, Finished, Memory, Phase, Row, Stats, Step, Submit
from bramley.domain.wire import ToFront as Message
from bramley.engine import sampling
from bramley.engine.batch import Batch, Model
from bramley.engine.sampling import Draw, SamplingRow
from bramley.engine.scheduler import Scheduler, StepPlan
from bramley.engine.sequence import Sequence

_CHUNK_ON_CPU = 256
_CHUNK_ON_GPU = 2048
# MLX keeps freed buffers for reuse by size, and caches that grow leave sizes nobody asks for again.
_CLEAR_EVERY_STEPS = 256


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model takes: tokens of prompt and answer together, and the tokens that end its turn."""

    context_length: int
    eos_token_ids: frozenset[int] = frozenset()


class Engine:
    """Owned by one runner; every method is called on the thread that loaded the model.

    Methods give the messages for the front in the order they are to be sent. ``step`` raises what MLX raises; after
    that only ``abort`` is allowed.
    """

    def __init__(
        self,
        model: Model,
        limits: ModelLimits,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        self._limits = limits
        self._batch = Batch(model)
        self._scheduler = Scheduler(
            max_num_seqs=options.max_num_seqs,
            max_queue=options.max_queue,
            chunk=options.prefill_chunk or (_CHUNK_ON_CPU if on_cpu else _CHUNK_ON_GPU),
        )
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}
        self._steps = self._prompt_tokens = self._completion_tokens = self._finished = 0

    @property
    def kv_bytes_per_token(self) -> int:
        return self._batch.kv_bytes_per_token

    @property
    def vocab_size(self) -> int:
        return self._batch.vocab_size

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def phase(self) -> Phase:
        """What the next step does."""
        if not self.has_work:
            return "idle"
        return "prefill" if self._scheduler.is_prefilling else "decode"

    def submit(self, submit: Submit) -> list[Message]:
        """Queue a request. One that cannot be served, or finds the queue full, is answered with Failed."""
        problem = self._problem(submit)
        if problem is not None:
            return [Failed(kind="request", message=problem, sequence=submit.sequence)]
        sequence = Sequence.from_submit(submit, self._limits.eos_token_ids, self._clock())
        try:
            self._scheduler.add(sequence)
        except Overloaded as error:
            return [Failed(kind="overloaded", message=error.message, sequence=submit.sequence)]
        self._sequences[sequence.number] = sequence
        return []

    def cancel(self, number: int, keep_tokens: int | None = None) -> list[Message]:
        """End a sequence in whatever state it is. One that ended already, or never was, is no error."""
        sequence = self._sequences.get(number)
        if sequence is None:
            return []
        return [self._finish(sequence, sequence.finished("cancelled", self._clock(), keep_tokens=keep_tokens))]

    def cancel_all(self) -> list[Message]:
        return [message for number in tuple(self._sequences) for message in self.cancel(number)]

    def abort(self, kind: FailureKind, reason: str) -> list[Message]:
        """Fail every sequence, queued ones too, and free all they hold."""
        failed: list[Message] = []
        for sequence in tuple(self._sequences.values()):
            self._drop(sequence)
            failed.append(Failed(kind=kind, message=reason, sequence=sequence.number))
        mx.clear_cache()
        return failed

    def step(self) -> list[Message]:
        """One decode of all running sequences, and the next part of the prompts: a Step, then what finished."""
        plan = self._scheduler.plan()
        self._admit(plan)
        ready, logits = self._batch.forward(plan)
        draws = [] if logits is None else sampling.draw(logits, [_sampling_row(sequence) for sequence in ready])
        messages = self._deliver(ready, draws)
        self._count(plan, len(draws))
        self._tidy(plan)
        return messages

    def stats(self) -> Stats:
        now = self._clock()
        return Stats(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            finished=self._finished,
            memory=Memory(active=mx.get_active_memory(), peak=mx.get_peak_memory(), cache=mx.get_cache_memory()),
            sequences=tuple(sequence.stats(now) for sequence in self._sequences.values()),
        )

    def _problem(self, submit: Submit) -> str | None:
        """Why a request cannot be served, as a sentence for the user; None if it can."""
        limits = self._limits
        prompt, answer = len(submit.token_ids), submit.max_tokens
        if submit.sequence in self._sequences:
            return f"Sequence {submit.sequence} is in use already."
        if prompt == 0:
            return "The prompt is empty; give at least one token."
        if answer < 1:
            return "max_tokens must be at least 1."
        if prompt + answer > limits.context_length:
            return (
                f"The prompt has {prompt} tokens and the answer may have {answer}; "
                f"together they exceed the model's context of {limits.context_length} tokens."
            )
        # An id out of range would read memory beyond the embedding table.
        if min(submit.token_ids) < 0 or max(submit.token_ids) >= self.vocab_size:
            return f"A token id of the prompt is not in the model's vocabulary of {self.vocab_size}."
        unsupported = _unsupported(submit)
        return f"This model does not support {unsupported}." if unsupported else None

    def _admit(self, plan: StepPlan) -> None:
        now = self._clock()
        for sequence in plan.admit:
            sequence.admitted_at = now
            self._batch.join(sequence)

    def _deliver(self, ready: list[Sequence], draws: list[Draw]) -> list[Message]:
        now = self._clock()
        rows: list[Row] = []
        finished: list[Message] = []
        for sequence, drawn in zip(ready, draws, strict=True):
            if not sequence.append(drawn.token, now):
                finished.append(self._finish(sequence, sequence.finished("stop", now, stop_token_id=drawn.token)))
                continue
            rows.append(Row(sequence.number, (drawn.token,), (drawn.logprobs,) if drawn.logprobs else ()))
            if sequence.is_full:
                finished.append(self._finish(sequence, sequence.finished("length", now)))
        return [Step(tuple(rows)), *finished] if rows else finished

    def _finish(self, sequence: Sequence, finished: Finished) -> Message:
        self._drop(sequence)
        self._finished += 1
        return finished

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.number]
        self._scheduler.remove(sequence)
        self._batch.leave(sequence)

    def _count(self, plan: StepPlan, drawn: int) -> None:
        self._steps += 1
        self._prompt_tokens += sum(count for _, count in plan.prefill)
        self._completion_tokens += drawn

    def _tidy(self, plan: StepPlan) -> None:
        """Give freed buffers back: after a prompt, whose chunks are large; now and then; and when nothing runs."""
        ended_prompt = any(sequence.is_prefilled for sequence, _ in plan.prefill)
        if ended_prompt or self._steps % _CLEAR_EVERY_STEPS == 0 or not self.has_work:
            mx.clear_cache()


def _sampling_row(sequence: Sequence) -> SamplingRow:
    return SamplingRow(
        sampling=sequence.sampling,
        position=len(sequence.generated),
        prompt=sequence.prompt,
        generated=sequence.generated,
        banned=sequence.banned,
    )


def _unsupported(submit: Submit) -> str | None:
    """The first thing a request asks for that this engine would ignore; an answer without it would be wrong."""
    asked = {
        "grammar": submit.grammar is not None,
        "forced tokens": submit.force is not None,
        "adapters": bool(submit.adapter),
        "media": bool(submit.media),
        "typical_p": submit.sampling.typical_p < 1,
        "xtc_probability": submit.sampling.xtc_probability > 0,
        "prompt log-probabilities": submit.sampling.prompt_logprobs is not None,
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)
