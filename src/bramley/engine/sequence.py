"""The state of one request in the engine, from Submit to its end. Pure Python: no MLX."""

from dataclasses import dataclass, field
from typing import Final, Literal

from bramley.domain.requests import Priority
from bramley.domain.sampling import Sampling
from bramley.domain.usage import Timings
from bramley.domain.wire import Finished, SequenceStats, Submit

# Of an answer that may be long, so many tokens are counted on; most end before.
_PROJECTED_ANSWER: Final = 256


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. Times are seconds on the engine's monotonic clock.

    ``prefilled`` counts the tokens read so far: those of the prompt, and after a preemption the first ``resumed`` of
    the answer, which are read again with it. ``generated`` are the tokens drawn so far, without the stop token;
    ``in_flight`` is 1 while one more is drawn on the device and not yet known here. ``end_ids`` are the token ids that
    end the answer. ``reserved`` is the length in tokens that memory is set aside for; ``standing`` the class it was
    admitted with, 0 the highest.
    """

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    end_ids: frozenset[int]
    submitted_at: float
    priority: Priority = "normal"
    admitted_at: float | None = None
    first_token_at: float | None = None
    is_running: bool = False
    prefilled: int = 0
    resumed: int = 0
    generated: list[int] = field(default_factory=list)
    in_flight: int = 0
    reserved: int = 0
    standing: int = 0
    preemptions: int = 0

    @classmethod
    def from_submit(cls, submit: Submit, eos_token_ids: frozenset[int], now: float) -> "Sequence":
        """``ignore_eos`` takes the model's own end tokens out of the stop tokens and leaves the client's."""
        end_ids = frozenset(submit.stop_token_ids)
        if submit.sampling.ignore_eos:
            end_ids -= eos_token_ids
        return cls(submit.sequence, submit.token_ids, submit.max_tokens, submit.sampling, end_ids, now, submit.priority)

    @property
    def prompt_left(self) -> int:
        return len(self.prompt) + self.resumed - self.prefilled

    @property
    def is_prefilled(self) -> bool:
        return self.prompt_left == 0

    @property
    def scores_prompt(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are still wanted."""
        return self.sampling.prompt_logprobs is not None and not self.generated

    @property
    def length(self) -> int:
        """Tokens of prompt and answer, those in flight included: as long as its caches can be now."""
        return len(self.prompt) + len(self.generated) + self.in_flight

    @property
    def projected(self) -> int:
        """The length counted on when it begins to run, or to run again."""
        return self.length + min(self.max_tokens - len(self.generated), _PROJECTED_ANSWER)

    @property
    def is_drawn(self) -> bool:
        """Whether no more tokens are to be drawn beyond those in flight."""
        return len(self.generated) + self.in_flight >= self.max_tokens

    @property
    def is_full(self) -> bool:
        return len(self.generated) >= self.max_tokens

    @property
    def banned(self) -> frozenset[int]:
        """Token ids that may not be drawn now: no stop token before ``min_tokens``."""
        return self.end_ids if len(self.generated) < self.sampling.min_tokens else frozenset()

    @property
    def phase(self) -> Literal["queued", "prefill", "generation"]:
        if not self.is_running:
            return "queued"
        return "generation" if self.is_prefilled else "prefill"

    def admit(self, now: float, standing: int = 0) -> None:
        """Begin to run. What was generated before a preemption is read again with the prompt."""
        self.is_running = True
        self.resumed = len(self.generated)
        self.reserved = self.projected
        self.standing = standing
        if self.admitted_at is None:
            self.admitted_at = now

    def preempt(self) -> None:
        """Stop running and lose all that was read."""
        self.is_running = False
        self.preemptions += 1
        self.prefilled = 0

    def read_on(self, count: int) -> tuple[int, ...]:
        """The next ``count`` tokens to read; they count as read from now on."""
        start, self.prefilled = self.prefilled, self.prefilled + count
        tokens = self.prompt[start : self.prefilled]
        again = slice(max(start - len(self.prompt), 0), max(self.prefilled - len(self.prompt), 0))
        return (*tokens, *self.generated[again])

    def append(self, token: int, now: float) -> bool:
        """Take the next token; False when it ended the answer and is not part of it."""
        self.in_flight = 0
        if self.first_token_at is None:
            self.first_token_at = now
        if token in self.end_ids:
            return False
        self.generated.append(token)
        return True

    def finished(
        self,
        reason: Literal["stop", "length", "cancelled"],
        now: float,
        *,
        stop_token_id: int | None = None,
        keep_tokens: int | None = None,
    ) -> Finished:
        """The last message of this sequence. ``keep_tokens`` cuts the answer, as Cancel says."""
        count = len(self.generated) + (stop_token_id is not None)
        return Finished(
            sequence=self.number,
            reason=reason,
            prompt_tokens=len(self.prompt),
            completion_tokens=count if keep_tokens is None else min(keep_tokens, count),
            stop_token_id=stop_token_id,
            timings=self._timings(now),
        )

    def stats(self, now: float) -> SequenceStats:
        return SequenceStats(
            sequence=self.number,
            phase=self.phase,
            prompt_tokens=len(self.prompt),
            prefilled_tokens=min(self.prefilled, len(self.prompt)),
            generated_tokens=len(self.generated),
            max_tokens=self.max_tokens,
            ttft_s=None if self.first_token_at is None else self.first_token_at - self.submitted_at,
            age_s=now - self.submitted_at,
        )

    def _timings(self, now: float) -> Timings:
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timings(queue_s=admitted - self.submitted_at, prefill_s=first - admitted, decode_s=now - first)
