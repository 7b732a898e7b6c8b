"""What a sequence's caches cost in memory. Pure arithmetic: no MLX."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes of one sequence's caches over all layers, by kind of layer.

    ``full`` grows by so many bytes with every token. ``windows`` are pairs (tokens, bytes per token): these layers stop
    growing at their window. ``state`` does not depend on the length.
    """

    full: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    state: int = 0

    def __add__(self, other: "KvCost") -> "KvCost":
        return KvCost(self.full + other.full, self.windows + other.windows, self.state + other.state)

    @property
    def per_token(self) -> int:
        """Bytes a token adds while no window is full."""
        return self.full + sum(each for _, each in self.windows)

    def of(self, tokens: int) -> int:
        """Bytes for a sequence of so many tokens."""
        windows = sum(min(tokens, window) * each for window, each in self.windows)
        return self.full * tokens + windows + self.state
