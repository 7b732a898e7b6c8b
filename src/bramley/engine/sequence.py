"""The state of one request in the engine, from Submit to its end. Pure Python: no MLX."""

from dataclasses import dataclass, field
from typing import Literal

from bramley.domain.sampling import Sampling
from bramley.domain.usage import Timings
from bramley.domain.wire import Finished, SequenceStats, Submit


@dataclass(slots=True, eq=False)
class Sequence:
    """One request. Times are seconds on the engine's monotonic clock.

    ``prefilled`` counts the prompt tokens the model has seen. ``generated`` are the tokens drawn so far, without the
    stop token. ``end_ids`` are the token ids that end the answer.
    """

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    end_ids: frozenset[int]
    submitted_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    prefilled: int = 0
    generated: list[int] = field(default_factory=list)

    @classmethod
    def from_submit(cls, submit: Submit, eos_token_ids: frozenset[int], now: float) -> "Sequence":
        """``ignore_eos`` takes the model's own end tokens out of the stop tokens and leaves the client's."""
        end_ids = frozenset(submit.stop_token_ids)
        if submit.sampling.ignore_eos:
            end_ids -= eos_token_ids
        return cls(submit.sequence, submit.token_ids, submit.max_tokens, submit.sampling, end_ids, now)

    @property
    def prompt_left(self) -> int:
        return len(self.prompt) - self.prefilled

    @property
    def is_prefilled(self) -> bool:
        return self.prompt_left == 0

    @property
    def is_full(self) -> bool:
        return len(self.generated) >= self.max_tokens

    @property
    def banned(self) -> frozenset[int]:
        """Token ids that may not be drawn now: no stop token before ``min_tokens``."""
        return self.end_ids if len(self.generated) < self.sampling.min_tokens else frozenset()

    @property
    def phase(self) -> Literal["queued", "prefill", "generation"]:
        if self.admitted_at is None:
            return "queued"
        return "generation" if self.is_prefilled else "prefill"

    def append(self, token: int, now: float) -> bool:
        """Take the next token; False when it ended the answer and is not part of it."""
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
            prefilled_tokens=self.prefilled,
            generated_tokens=len(self.generated),
            max_tokens=self.max_tokens,
            ttft_s=None if self.first_token_at is None else self.first_token_at - self.submitted_at,
            age_s=now - self.submitted_at,
        )

    def _timings(self, now: float) -> Timings:
        admitted = now if self.admitted_at is None else self.admitted_at
        first = now if self.first_token_at is None else self.first_token_at
        return Timings(queue_s=admitted - self.submitted_at, prefill_s=first - admitted, decode_s=now - first)
