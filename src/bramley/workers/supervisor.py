"""Keeps one model's worker alive: starts it, watches its heartbeat, starts it again when it dies."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Literal

from bramley.domain.errors import BramleyError, ModelLoadError, ModelUnavailable, ShuttingDown
from bramley.domain.wire import Load, Progress, Ready
from bramley.workers.options import SupervisorOptions
from bramley.workers.process import WORKER_COMMAND, WorkerProcess

log = logging.getLogger("bramley.supervisor")

# A long load is no stall: how long it takes depends on the disk alone.
UNJUDGED = frozenset({"starting", "loading", "converting", "idle"})
LOADING_PATIENCE = 6

State = Literal["loading", "ready", "unresponsive", "restarting", "failed", "stopped"]


def ignore_progress(_: Progress) -> None:
    """Default listener."""


class Supervisor:
    """States: loading -> ready -> (unresponsive ->) restarting -> ready ..., or failed while retries go on.

    The first load is different: when it fails, ``start`` raises and nothing is retried, because the settings are
    wrong. Later loads of the same model are retried with growing pauses.
    """

    def __init__(
        self,
        load: Load,
        options: SupervisorOptions,
        on_progress: Callable[[Progress], None] = ignore_progress,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.state: State = "loading"
        self.reason = ""
        self.restarts = 0
        self.progress: Progress | None = None
        self._load = load
        self._options = options
        self._on_progress = on_progress
        self._command = command
        self._process: WorkerProcess | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._deaths = 0

    @property
    def process(self) -> WorkerProcess | None:
        """The process that answers now; None while there is none."""
        return self._process if self.state in ("ready", "unresponsive") else None

    @property
    def active(self) -> int:
        """Sequences that have not ended."""
        return self._process.active if self._process is not None else 0

    async def start(self) -> Ready:
        """Load the model for the first time. Raises ModelLoadError."""
        try:
            self._process, ready = await self._spawn()
        except BaseException:
            self._set("stopped")
            raise
        self._set("ready")
        self._task = asyncio.create_task(self._watch(self._process))
        return ready

    async def worker(self) -> WorkerProcess:
        """The process to send work to, waiting while it loads or restarts. Raises ModelUnavailable, ShuttingDown."""
        while self.process is None:
            if self.state == "stopped":
                raise ShuttingDown("The server is shutting down.")
            if self.state == "failed":
                raise ModelUnavailable(
                    f"The model is not available: its worker {self.reason}. It will be started again."
                )
            await self.changed()
        return self.process

    async def changed(self) -> None:
        """Wait for the next change of state."""
        await self._changed.wait()

    def fail_streams(self, error: BramleyError) -> None:
        if self._process is not None:
            self._process.fail_streams(error)

    async def stop(self) -> None:
        """End the worker. Streams that are still open fail with ShuttingDown."""
        self._set("stopped")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._process is not None:
            self._process.fail_streams(ShuttingDown("The server is shutting down."))
            await self._process.stop(self._options.stop_s)

    def _set(self, state: State, reason: str = "") -> None:
        if self.state == "stopped":
            return
        self.state, self.reason = state, reason
        self._changed.set()
        self._changed = asyncio.Event()

    def _report(self, progress: Progress) -> None:
        if progress.job == 0:
            self.progress = progress
            self._on_progress(progress)

    async def _spawn(self) -> tuple[WorkerProcess, Ready]:
        """A new process that has loaded the model. Raises ModelLoadError; then the process is gone."""
        process = await WorkerProcess.start(self._load, self._report, self._command)
        # Importing MLX and reading files can keep the IO thread from answering for some seconds.
        heartbeat = asyncio.create_task(self._heartbeat(process, LOADING_PATIENCE * self._options.hang_s))
        try:
            return process, await process.loaded()
        except BaseException:
            await process.stop(0)
            raise
        finally:
            heartbeat.cancel()

    async def _watch(self, process: WorkerProcess) -> None:
        """Follow one process after the other until ``stop`` cancels this task."""
        while True:
            heartbeat = asyncio.create_task(self._heartbeat(process, self._options.hang_s))
            await process.exited.wait()
            heartbeat.cancel()
            process = await self._restart(process)

    async def _restart(self, dead: WorkerProcess) -> WorkerProcess:
        self._deaths = 0 if dead.finished else self._deaths
        reason = dead.failure
        while True:
            self._deaths += 1
            gave_up = self._deaths >= self._options.give_up
            self._set("failed" if gave_up else "restarting", reason)
            pause = min(self._options.backoff_s * 2 ** (self._deaths - 1), self._options.backoff_max_s)
            log.error("the worker %s; it is started again in %g s", reason, pause)
            await asyncio.sleep(pause)
            self.restarts += 1
            try:
                self._process, _ = await self._spawn()
            except ModelLoadError as error:
                said = error.message.rstrip(".")
                reason = f"could not load the model again: {said[:1].lower()}{said[1:]}"
                continue
            self._set("ready")
            log.info("the worker is ready again")
            return self._process

    async def _heartbeat(self, process: WorkerProcess, hang_s: float) -> None:
        """Ping on each tick. Missed answers are counted in ticks, so that a sleeping laptop kills nothing."""
        options = self._options
        missed = 0
        for nonce in itertools.count(1):
            process.ping(nonce)
            await asyncio.sleep(options.heartbeat_s)
            pong = process.pong
            if pong is None or pong.nonce < nonce:
                missed += 1
                if self.state == "ready":
                    self._set("unresponsive", "does not answer")
                if missed * options.heartbeat_s >= hang_s:
                    process.kill("stopped answering")
                continue
            missed = 0
            if pong.busy_s > options.stall_s and pong.phase not in UNJUDGED:
                process.kill(f"made no progress for {pong.busy_s:.0f} seconds")
            elif self.state == "unresponsive":
                self._set("ready")
