"""How memory is divided: MLX's own limits, and what the running sequences' caches may take."""

from dataclasses import dataclass
from typing import Final

import mlx.core as mx

from bramley.domain.memory import kv_bytes, reuse_bytes

_CLEAR_EVERY_STEPS: Final = 256


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes. ``total`` is what this process may use, ``kv`` what running sequences may hold of it, ``reuse`` what MLX
    may keep of freed buffers, ``wired`` what Metal keeps resident (0 elsewhere).
    """

    total: int
    kv: int
    reuse: int
    wired: int

    @property
    def note(self) -> str:
        """One sentence for the log and /health."""
        wired = f", wired up to {_shown(self.wired)}" if self.wired else ""
        return (
            f"Memory: {_shown(self.kv)} for the caches of running requests, of {_shown(self.total)} in all; "
            f"freed buffers are kept up to {_shown(self.reuse)}{wired}."
        )


def device_memory(host: int) -> int:
    """Bytes of memory that models can use on this device, with ``host`` bytes of the machine's own usable."""
    if mx.metal.is_available():
        return min(host, _device_info("max_recommended_working_set_size") or host)
    if mx.default_device().type == mx.DeviceType.gpu:
        return _device_info("memory_size") or host
    return host


def arrange(*, limit: int, usable: int, weights: int) -> MemoryPlan:
    """Set MLX's limits for a model whose ``weights`` are loaded. ``limit`` 0: all of ``usable``."""
    total = limit or usable
    wired = total if mx.metal.is_available() else 0
    plan = MemoryPlan(
        total=total,
        kv=kv_bytes(total, weights),
        reuse=reuse_bytes(total, mx.default_device().type.name),
        wired=wired,
    )
    mx.set_cache_limit(plan.reuse)
    if wired:
        # more than the system recommends is refused
        mx.set_wired_limit(min(wired, _device_info("max_recommended_working_set_size") or wired))
    return plan


def tidy(steps: int, *, ended_long_prompt: bool, is_idle: bool) -> None:
    """Give freed buffers back: after a prompt of several chunks, now and then, and when nothing runs.

    Caches that grow leave buffers of sizes that nobody asks for again.
    """
    if ended_long_prompt or is_idle or steps % _CLEAR_EVERY_STEPS == 0:
        mx.clear_cache()


def _device_info(name: str) -> int:
    """A number of the default device's properties, 0 where it has none of that name."""
    value = mx.device_info().get(name, 0)
    return int(value)


def _shown(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
