"""Token generation for many requests at once. Knows token ids only: no text, no HTTP, no chat."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from bramley.domain.errors import Overloaded
from bramley.domain.wire import (
    EngineOptions,
    Failed,
    FailureKind,
    Finished,
    Memory,
    Phase,
    PromptLogprobs,
    Row,
    Stats,
    Step,
    Submit,
)  # fmt: skip
from bramley.domain.wire import ToFront as Message
from bramley.engine import memory
from bramley.engine.batch import Batch
from bramley.engine.draws import Flight, Pass, Sampler
from bramley.engine.group import Newest
from bramley.engine.model import Model, TextModel
from bramley.engine.pace import Pace
from bramley.engine.sampling import Draw
from bramley.engine.scheduler import Limits, Scheduler, StepPlan
from bramley.engine.sequence import Sequence
from bramley.engine.trial import why_alone

_CHUNK_ON_CPU = 256
_CHUNK_ON_GPU = 2048


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a model takes: tokens of prompt and answer together, the tokens that end its turn, and bytes of memory for
    the caches of all running requests.
    """

    context_length: int
    eos_token_ids: frozenset[int] = frozenset()
    kv_bytes: int = 1 << 62


class Engine:
    """Owned by one runner; every method is called on the thread that loaded the model.

    Methods give the messages for the front in the order they are to be sent. ``step`` raises what MLX raises; after
    that only ``abort`` is allowed.

    Ahead by one step: the passes of a step are built, and on a GPU started, while the tokens of the step before are
    computed. Those are read then and delivered, the rows they end are taken out, and the next draw is made from what is
    known by then, so that the answers are those of ``ahead`` False.
    """

    def __init__(
        self,
        model: Model,
        limits: ModelLimits,
        options: EngineOptions,
        clock: Callable[[], float] = time.monotonic,
        *,
        ahead: bool = True,
    ) -> None:
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        self._limits = limits
        self._model = TextModel(model)
        alone = why_alone(self._model)
        self._batch = Batch(self._model, together=alone is None)
        self._sampler = Sampler(self._model.vocab_size)
        self._chunk_limit = options.prefill_chunk or (_CHUNK_ON_CPU if on_cpu else _CHUNK_ON_GPU)
        self._pace = Pace(limit=self._chunk_limit, target_gap_s=options.target_gap_ms / 1000)
        self._scheduler = Scheduler(
            Limits(options.max_num_seqs, options.max_queue, limits.kv_bytes), self._model.cost, self._pace
        )
        self._clock = clock
        self._ahead = ahead
        # MLX's CPU backend takes a hundred operations at a time: to start a pass is to wait for most of it. The tokens
        # of the step before are to be on their way by then.
        self._starts_late = on_cpu
        self._flight: Flight | None = None
        self._newest: Newest | None = None
        self._read_at = 0.0
        self._sequences: dict[int, Sequence] = {}
        self._steps = self._prompt_tokens = self._completion_tokens = self._finished = 0
        self.notes = (f"Requests to this model decode one by one: {alone}.",) if alone else ()

    @property
    def kv_bytes_per_token(self) -> int:
        return self._model.cost.per_token

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def held(self) -> dict[str, int]:
        """What the engine holds, for tests that look for leaks: all zero when nothing is in flight."""
        return {
            "sequences": len(self._sequences),
            "running": len(self._scheduler.running),
            "waiting": len(self._scheduler.waiting),
            "rows": len(self._batch),
            "slots": self._batch.slots,
            "bytes": sum(array.nbytes for array in self._batch.arrays()),
            "samplers": len(self._sampler),
            "flights": int(self._flight is not None) + int(self._newest is not None),
        }

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

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
        misfit = self._scheduler.misfit(sequence)
        if misfit is not None:
            return [Failed(kind="request", message=misfit, sequence=submit.sequence)]
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
        """One decode of all running sequences, and the next part of the prompts: a Step, then what finished.

        The tokens are those of the step before, or of this one too when no further step could start without them.
        """
        if self._flight is not None and self._starts_late:
            self._flight.source.start_timed(*self._flight.drawn.arrays())
        plan = self._scheduler.plan(self._clock())
        for sequence in plan.preempt:
            self._release(sequence)
        work = self._compute(plan)
        messages = self._read()
        self._draw(work)
        if not self._ahead or not self._scheduler.has_next:
            messages += self._read()
        self._steps += 1
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

    def _compute(self, plan: StepPlan) -> Pass:
        """Build a step's passes. A GPU starts with each while the next is built."""
        work = Pass(self._clock)
        if plan.decode:
            if self._newest is None:
                raise RuntimeError("sequences are to decode that have drawn no token")
            work.sequences, work.decoded = self._batch.decode(plan.decode, self._newest)
            work.parts.append(work.decoded)
            if not self._starts_late:
                work.start()
        work.read = sum(count for _, count in plan.prefill)
        for wave in self._batch.waves(plan.prefill):
            sequences = [sequence for sequence, _ in wave]
            last = self._batch.read_whole(sequences) if len(wave) > 1 else self._batch.read(*wave[0])
            if last is not None:
                work.sequences += sequences
                work.parts.append(last)
        if plan.prefill:
            work.prompts = self._batch.prompts()
            if not self._starts_late:
                work.start()
        self._prompt_tokens += work.read
        return work

    def _draw(self, work: Pass) -> None:
        """Draw for those that have not ended meanwhile. Without any, wait until the prompts are read."""
        staying = [place for place, sequence in enumerate(work.sequences) if self._is_here(sequence)]
        if not staying:
            self._read_at = work.finish([], max(self._read_at, self._clock()), self._pace)
            return
        logits = work.parts[0] if len(work.parts) == 1 else mx.concatenate(work.parts)
        if len(staying) < len(work.sequences):
            logits = logits[mx.array(staying, dtype=mx.int32)]
        rows = tuple(work.sequences[place] for place in staying)
        self._flight = Flight(rows, self._sampler.draw(rows, logits), work)
        self._newest = self._flight.newest
        if not self._starts_late:
            work.start(*self._flight.drawn.arrays())
        for sequence in rows:
            sequence.in_flight = 1

    def _read(self) -> list[Message]:
        """Wait for the tokens in flight and deliver them."""
        flight, self._flight = self._flight, None
        if flight is None:
            return []
        self._read_at = flight.source.finish(flight.drawn.arrays(), self._read_at, self._pace)
        return self._deliver([(sequence, drawn) for sequence, drawn in flight.draws() if self._is_here(sequence)])

    def _deliver(self, draws: list[tuple[Sequence, Draw]]) -> list[Message]:
        now = self._clock()
        rows: list[Row] = []
        scores: list[Message] = []
        finished: list[Message] = []
        for sequence, drawn in draws:
            if (found := self._batch.take_scores(sequence)) is not None:
                scores.append(PromptLogprobs(sequence.number, found))
            if not sequence.append(drawn.token, now):
                finished.append(self._finish(sequence, sequence.finished("stop", now, stop_token_id=drawn.token)))
                continue
            rows.append(Row(sequence.number, (drawn.token,), (drawn.logprobs,) if drawn.logprobs else ()))
            if sequence.is_full:
                finished.append(self._finish(sequence, sequence.finished("length", now)))
        self._completion_tokens += len(draws)
        return [*scores, Step(tuple(rows)), *finished] if rows else [*scores, *finished]

    def _is_here(self, sequence: Sequence) -> bool:
        return self._sequences.get(sequence.number) is sequence

    def _finish(self, sequence: Sequence, finished: Finished) -> Message:
        self._drop(sequence)
        self._finished += 1
        return finished

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.number]
        self._scheduler.remove(sequence)
        self._release(sequence)
        if not self._sequences:
            self._flight = self._newest = None

    def _release(self, sequence: Sequence) -> None:
        """Free what a sequence has on the device."""
        self._batch.leave(sequence)
        self._sampler.forget(sequence)

    def _tidy(self, plan: StepPlan) -> None:
        ended_long = any(one.is_prefilled and one.prefilled > self._chunk_limit for one, _ in plan.prefill)
        memory.tidy(self._steps, ended_long_prompt=ended_long, is_idle=not self.has_work)


def _unsupported(submit: Submit) -> str | None:
    """The first thing a request asks for that this engine would ignore; an answer without it would be wrong."""
    asked = {
        "grammar": submit.grammar is not None,
        "forced tokens": submit.force is not None,
        "adapters": bool(submit.adapter),
        "media": bool(submit.media),
    }
    return next((name for name, is_asked in asked.items() if is_asked), None)
