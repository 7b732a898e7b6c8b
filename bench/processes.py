"""CPU time and memory of a server's process tree."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import msgspec
import psutil

_SAMPLE_S = 0.25
_REFRESH_S = 1.0
_SETTLE_S = 1.0
_WINDOW_S = 0.1
_BUSY_SHARE = 0.2


class Cpu(msgspec.Struct, frozen=True):
    """CPU seconds, user and system: of the process that was started, and of all below it."""

    root: float = 0.0
    children: float = 0.0

    @property
    def total(self) -> float:
        return self.root + self.children

    def since(self, earlier: "Cpu") -> "Cpu":
        return Cpu(self.root - earlier.root, self.children - earlier.children)


class ProcessTree:
    """The process ``pid`` and all below it. A process that ended keeps its last reading."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._known: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            self._known[pid] = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self._refreshed = 0.0
        self.peak_rss = 0

    def refresh(self) -> None:
        with contextlib.suppress(psutil.Error):
            if self._pid in self._known:
                for child in self._known[self._pid].children(recursive=True):
                    self._known.setdefault(child.pid, child)
        self._refreshed = time.monotonic()

    def cpu(self, *, refresh: bool = True) -> Cpu:
        if refresh:
            self.refresh()
        for pid, process in self._known.items():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._cpu[pid] = times.user + times.system
        root = self._cpu.get(self._pid, 0.0)
        return Cpu(root, sum(self._cpu.values()) - root)

    def sample_rss(self) -> None:
        """Sum of resident bytes now; pages shared between processes count in each."""
        total = 0
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self.peak_rss = max(self.peak_rss, total)

    def counts(self) -> tuple[int, int]:
        """Processes and threads alive."""
        self.refresh()
        threads = []
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                threads.append(process.num_threads())
        return len(threads), sum(threads)

    def kill(self) -> None:
        """SIGKILL to every process ever seen in the tree that still lives (psutil guards against reused ids)."""
        self.refresh()
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    async def watch_memory(self) -> None:
        """Keep ``peak_rss`` up to date until cancelled."""
        while True:
            if time.monotonic() - self._refreshed > _REFRESH_S:
                self.refresh()
            self.sample_rss()
            await asyncio.sleep(_SAMPLE_S)

    async def until_idle(self, limit_s: float) -> float:
        """Seconds from now to the end of the last busy moment; ``limit_s`` when it does not come to rest before."""
        start = time.monotonic()
        last_busy = 0.0
        before, at = self.cpu(refresh=False).total, start
        while (elapsed := at - start) < limit_s + _SETTLE_S:
            if elapsed - last_busy > _SETTLE_S:
                return last_busy
            await asyncio.sleep(_WINDOW_S)
            used, now = self.cpu(refresh=False).total, time.monotonic()
            if used - before > _BUSY_SHARE * (now - at):
                last_busy = now - start
            before, at = used, now
        return min(last_busy, limit_s)


@contextlib.asynccontextmanager
async def memory_watched(tree: ProcessTree) -> AsyncIterator[None]:
    """Sample the tree's memory inside the block."""
    task = asyncio.create_task(tree.watch_memory())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def machine_busy() -> float:
    """CPU seconds the whole machine has spent working."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "system", "nice", "irq", "softirq", "steal"))
