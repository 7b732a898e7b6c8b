"""The worker process: load a model, then serve messages until told to stop. The main thread, which owns MLX."""

import logging
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import msgspec

from bramley.domain.errors import BramleyError, ModelLoadError
from bramley.domain.wire import (
    VERSION,
    ComputeOptions,
    Failed,
    FailureKind,
    FrontMessage,
    Load,
    Phase,
    Progress,
    Shutdown,
    Stats,
    StatsPlease,
    ToFront,
)
from bramley.runners import registry as runners
from bramley.runners.base import Runner, is_out_of_memory
from bramley.runners.registry import Registry
from bramley.worker import blas
from bramley.worker.blas import BlasReport
from bramley.worker.io import Channel
from bramley.worker.limits import keep_descriptor_limit
from bramley.worker.phase import PhaseClock

log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_LOAD_FAILED = 3
EXIT_STEPS_FAIL = 4
# After so many failed steps in a row the process itself is in doubt, and the supervisor starts a new one.
MAX_FAILED_STEPS = 3

_PROGRESS_INTERVAL_S = 0.1
_STATS_INTERVAL_S = 0.25
_FLUSH_S = 2.0

Preload = Callable[[ComputeOptions, Path], BlasReport]


def preload_blas(compute: ComputeOptions, cache_dir: Path) -> BlasReport:
    return blas.preload(cache_dir, compute.blas, compute.threads)


def run(fd: int, registry: Registry | None = None, preload: Preload = preload_blas) -> NoReturn:
    """Serve the socket ``fd`` until the end of the process. ``registry`` and ``preload`` are the seams for tests.

    Exit codes: 0 told to stop, or the front is gone; 3 the model could not be loaded; 4 steps kept failing.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    # Ctrl-C is for the front. SIGTERM ends the process at once, also inside a computation.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    clock = PhaseClock()
    channel = Channel(fd, clock)
    channel.start()
    code = Worker(channel, clock, runners.discover() if registry is None else registry, preload).serve()
    channel.flush(_FLUSH_S)
    sys.stderr.flush()
    # Not sys.exit: tearing down MLX beside a live IO thread can abort, and nothing is left to be saved.
    os._exit(code)


class Worker:
    """The main thread's work. Implements ``Host`` for the runner."""

    def __init__(self, channel: Channel, clock: PhaseClock, registry: Registry, preload: Preload) -> None:
        self._channel = channel
        self._clock = clock
        self._registry = registry
        self._preload = preload
        self._progress_at = 0.0

    def serve(self) -> int:
        """Everything from the first message to the exit code."""
        first = self._channel.inbox.get()
        if isinstance(first, Shutdown):
            return EXIT_STOPPED
        try:
            runner = self._load(first)
        except BramleyError as error:
            return self._not_loaded("load", error.message)
        except Exception as error:
            log.exception("loading failed")
            if is_out_of_memory(error):
                return self._not_loaded("memory", "The model does not fit into memory; choose a smaller one.")
            return self._not_loaded("load", f"The model cannot be loaded: {_reason(error)}.")
        return self._loop(runner)

    def emit(self, message: ToFront) -> None:
        self._channel.send(message)

    def progress(self, phase: Phase, done: float, total: float, note: str = "", job: int = 0) -> None:
        self._clock.stamp(phase)
        now = time.monotonic()
        if done >= total or now - self._progress_at >= _PROGRESS_INTERVAL_S:
            self._progress_at = now
            self.emit(Progress(phase, done, total, note, job))

    def _load(self, load: FrontMessage) -> Runner:
        """Load what the first message asks for and say Ready. Raises what the runner raises."""
        if not isinstance(load, Load) or load.version != VERSION:
            said = f"version {load.version}" if isinstance(load, Load) else type(load).__name__
            raise ModelLoadError(f"The server and its worker do not belong together: {said} came, not {VERSION}.")
        if load.kind not in self._registry:
            raise ModelLoadError(f"Models of kind {load.kind!r} cannot be served: there is no runner for them.")
        self._clock.stamp("loading")
        began = time.monotonic()
        # Before the runner's file is imported: MLX binds to the BLAS that is there when it is loaded.
        report = self._preload(load.compute, Path(load.cache_dir))
        with keep_descriptor_limit():
            runner = self._registry[load.kind]()
        ready = runner.load(load, self)
        notes = (*_blas_notes(report, ready.device), *ready.notes)
        for note in notes:
            log.info("%s", note)
        load_s = time.monotonic() - began
        self.emit(msgspec.structs.replace(ready, notes=notes, threads=report.threads, load_s=load_s))
        return runner

    def _not_loaded(self, kind: FailureKind, message: str) -> int:
        self.emit(Failed(kind=kind, message=message))
        return EXIT_LOAD_FAILED

    def _loop(self, runner: Runner) -> int:
        stats = _StatsPush(runner, self._channel)
        failed_steps = 0
        while True:
            for message in self._arrived(runner, stats):
                if isinstance(message, Shutdown):
                    self._clock.stamp("stopping")
                    runner.shutdown()
                    return EXIT_STOPPED
                if isinstance(message, StatsPlease):
                    stats.push()
                else:
                    runner.handle(message)
            if runner.has_work:
                failed_steps = 0 if self._step(runner) else failed_steps + 1
            if failed_steps >= MAX_FAILED_STEPS:
                log.error("%d steps in a row failed; the worker ends.", failed_steps)
                return EXIT_STEPS_FAIL
            stats.push_if_changed()

    def _arrived(self, runner: Runner, stats: "_StatsPush") -> Iterator[FrontMessage]:
        """What the front has sent. With nothing to compute it waits, but not longer than pending stats may."""
        try:
            if not runner.has_work:
                self._clock.stamp("idle")
                yield self._channel.inbox.get(timeout=stats.due_in())
            while True:
                yield self._channel.inbox.get_nowait()
        except queue.Empty:
            return

    def _step(self, runner: Runner) -> bool:
        """One step; False when it raised and everything in flight has failed."""
        self._clock.stamp(runner.phase)
        try:
            runner.step()
        except Exception as error:
            log.exception("a step failed")
            if is_out_of_memory(error):
                runner.abort("memory", "Memory ran out while the model worked on this request.")
            else:
                runner.abort("step", "The model failed while it worked on this request; the server's log says more.")
            return False
        return True


class _StatsPush:
    """Sends ``Stats`` when something changed since the last time, a few times a second at most."""

    def __init__(self, runner: Runner, channel: Channel) -> None:
        self._runner = runner
        self._channel = channel
        self._sent = Stats()
        self._sent_at = 0.0
        self._is_pending = False

    def push(self) -> None:
        self._send(self._runner.stats())

    def push_if_changed(self) -> None:
        """Call it after everything that may change the load; within the interval it only takes note."""
        self._is_pending = time.monotonic() - self._sent_at < _STATS_INTERVAL_S
        if not self._is_pending:
            stats = self._runner.stats()
            if _load_of(stats) != _load_of(self._sent):
                self._send(stats)

    def due_in(self) -> float | None:
        """Seconds until a change noted may be sent; None when there is none."""
        return max(0.0, self._sent_at + _STATS_INTERVAL_S - time.monotonic()) if self._is_pending else None

    def _send(self, stats: Stats) -> None:
        self._sent = stats
        self._sent_at = time.monotonic()
        self._is_pending = False
        self._channel.send(stats)


def _load_of(stats: Stats) -> tuple[int, int, int, int]:
    return stats.running, stats.waiting, stats.steps, stats.finished


def _blas_notes(report: BlasReport, device: str) -> tuple[str, ...]:
    """What the report says, or that its library is not what MLX calls, which only shows once a model has computed."""
    if device == "cpu" and report.shim is not None and report.products() == 0:
        return (f"{report.name} was loaded, but MLX computes with its own BLAS, which is 10 to 40 times slower.",)
    return report.notes


def _reason(error: BaseException) -> str:
    """The first line of an error, without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")
