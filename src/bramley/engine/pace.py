"""How many prompt tokens a step may read. Pure Python: no MLX, no clock."""

# Silences stay below three decode steps, measurements being what they are; less would starve a prompt on a CPU, where
# a pass over few tokens costs more than they do.
_DECODE_STEPS_PER_GAP = 2.3
# Of the target: chunks late in a long prompt take longer than the measured rate says.
_AIMED_SHARE = 0.6
_LEAST_PROMPT_SHARE = 1 / 3
_LEAST_CHUNK = 8
_ROUND_FROM, _ROUND_TO = 256, 64
# In a burst, what a wait of all prompts for one more decode step weighs against a silence of the streams.
_BURST = 3
# Until a prompt has been measured, nobody who streams should wait for a large chunk.
_FIRST_CHUNK = 64
# Weight of the newest measurement: old ones count for less than a tenth after ten steps.
_NEWEST = 0.25


class Pace:
    """Measures decoding and reading, and divides the time between two tokens of a stream among them.

    The gap aimed at is the longest of three: most of ``target_gap_s``; a little more than two decode steps; and when
    many wait for their first token, what makes the sum of all waits small: a token to the streams holds up all prompts,
    and a prompt those behind it. What decoding leaves of it is for prompts, at least a third. A chunk has at most
    ``limit`` tokens, and at least 8 so that every prompt gets on: a pass over fewer costs nearly as much.
    """

    def __init__(self, *, limit: int, target_gap_s: float) -> None:
        self._limit = limit
        self._target_gap_s = target_gap_s
        self._decode_s = 0.0
        self._prompt_rate = 0.0

    @property
    def decode_s(self) -> float:
        """Seconds of one decode step of all running sequences, 0 before the first."""
        return self._decode_s

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second, 0 before the first chunk."""
        return self._prompt_rate

    def decoded(self, seconds: float) -> None:
        """A decode step took so long."""
        self._decode_s = _moved(self._decode_s, seconds)

    def read(self, tokens: int, seconds: float) -> None:
        """Reading so many prompt tokens took so long."""
        if tokens > 0 and seconds > 0:
            self._prompt_rate = _moved(self._prompt_rate, tokens / seconds)

    def chunk(self, *, decoding: int, reading: int) -> int:
        """Prompt tokens of the next step; all that is allowed when nobody decodes. Both numbers are of sequences."""
        if not decoding:
            return self._limit
        if not self._prompt_rate:
            return min(self._limit, _FIRST_CHUNK)
        by_number = 1 + _BURST * (reading - 1) ** 2 / decoding
        gap = max(self._target_gap_s * _AIMED_SHARE, self._decode_s * max(_DECODE_STEPS_PER_GAP, by_number))
        seconds = max(gap - self._decode_s, gap * _LEAST_PROMPT_SHARE)
        # the bound keeps an endless gap from overflowing
        tokens = int(min(seconds * self._prompt_rate, self._limit))
        if tokens >= _ROUND_FROM:
            tokens -= tokens % _ROUND_TO
        return min(max(tokens, _LEAST_CHUNK), self._limit)


def _moved(average: float, newest: float) -> float:
    return newest if average == 0 else average + _NEWEST * (newest - average)
