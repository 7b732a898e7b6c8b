"""What a request cost, in tokens and in seconds."""

from typing import Literal

import msgspec

CacheHit = Literal["exact", "prefix", "supersequence", "lcp", "miss"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one sequence. ``completion_tokens`` counts the end-of-turn token too, as it was computed."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Timings(msgspec.Struct, frozen=True):
    """Seconds spent in each phase, measured by the worker on a monotonic clock."""

    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
