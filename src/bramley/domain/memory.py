"""How a worker divides its memory: what the engine goes by, and what ``serve --check`` says."""

from typing import Final

# What weights leave is for caches, but for a third: a batch that grows or shrinks is copied, and passes need scratch.
_KV_SHARE: Final = 2 / 3
# Where weights leave next to nothing, requests are still tried.
_LEAST_KV_SHARE: Final = 0.05
# Freed buffers MLX may keep for reuse: enough for the scratch of a pass, not for a batch that has gone.
_REUSE_SHARE: Final = 1 / 16
# On a CPU the heap reuses what is freed; a batch that grows leaves buffers to MLX that no later one has the size of.
_REUSE_ON_CPU: Final = 32 << 20
# The system and the front live in the rest.
_USABLE_SHARE: Final = 0.9


def usable_bytes(physical: int) -> int:
    """Bytes of the machine's memory that a worker may use."""
    return int(physical * _USABLE_SHARE)


def kv_bytes(total: int, weights: int) -> int:
    """Bytes that the caches of all running requests may take together."""
    return int(max(max(total - weights, 0) * _KV_SHARE, total * _LEAST_KV_SHARE))


def reuse_bytes(total: int, device: str) -> int:
    """Bytes of freed buffers that MLX may keep on a ``device``, "cpu" or "gpu"."""
    return min(_REUSE_ON_CPU, total) if device == "cpu" else int(total * _REUSE_SHARE)
