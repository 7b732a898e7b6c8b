"""Puts the parts together, runs them, and takes them down in order."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
import uvloop

from bramley import __version__
from bramley.api.context import ApiContext
from bramley.app.http import asgi_app
from bramley.app.limits import raise_descriptor_limit
from bramley.app.listen import bind, is_loopback, url
from bramley.app.progress import ProgressLine
from bramley.app.protocol import Protocol
from bramley.config.settings import Settings
from bramley.domain.errors import ShuttingDown
from bramley.domain.wire import Load, Ready
from bramley.service.generate import Generator
from bramley.service.pool import Model, Pool
from bramley.telemetry.log import Log
from bramley.workers.supervisor import Supervisor

log = logging.getLogger("bramley.app")

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
# What is left after the grace period is told so; this long it may take to reach the sockets.
LAST_WORDS_S = 1.0


def run(settings: Settings, notes: tuple[str, ...]) -> int:
    """Serve until told to stop; the exit code. ``notes`` on the settings go to the log.

    Raises StartupError when the server cannot start.
    """
    lines = Log(settings.log_level)
    for note in notes:
        log.warning("%s", note)
    raise_descriptor_limit()
    with contextlib.closing(bind(settings.host, settings.port)) as listener:
        if not is_loopback(settings.host) and not settings.api.api_keys:
            log.warning("listening on %s without --api-key: anyone who can reach it can use it", settings.host)
        application = _Application(settings, listener)
        try:
            uvloop.run(application.run())
        finally:
            lines.flush(LAST_WORDS_S)
    if application.has_stuck_thread:
        # The interpreter would wait for it for ever.
        sys.stdout.flush()
        os._exit(0)
    return 0


def model_path(settings: Settings) -> Path | None:
    return Path(settings.model).expanduser().resolve() if settings.model else None


def load_message(settings: Settings) -> Load:
    return Load(
        path=str(model_path(settings) or ""),
        cache_dir=settings.cache_dir,
        compute=settings.compute,
        engine=settings.engine,
    )


def model_names(settings: Settings) -> tuple[str, ...]:
    if settings.service.served_names:
        return settings.service.served_names
    return (Path(settings.model).expanduser().resolve().name if settings.model else EMBEDDED_NAME,)


async def _is_stuck(executor: ThreadPoolExecutor, threads: int) -> bool:
    """Whether a thread cannot be had back: a template that does not end, a text that takes minutes."""
    together = threading.Barrier(threads)
    meetings = [asyncio.wrap_future(executor.submit(together.wait, LAST_WORDS_S)) for _ in range(threads)]
    done, _ = await asyncio.wait(meetings, timeout=2 * LAST_WORDS_S)
    return len(done) < threads or any(meeting.exception() is not None for meeting in done)


class _Server(uvicorn.Server):
    """Signals are the application's business, which has more to end than connections."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Application:
    """One run of the server: load, serve, drain, stop."""

    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._stop = asyncio.Event()
        self.has_stuck_thread = False

    async def run(self) -> None:
        settings = self._settings
        names = model_names(settings)
        executor = ThreadPoolExecutor(settings.service.text_threads, thread_name_prefix="text")
        supervisor = Supervisor(load_message(settings), settings.supervisor, ProgressLine(names[0]).show)
        model = Model(names, model_path(settings), supervisor, executor)
        pool = Pool((model,))
        generator = Generator(pool, settings.service, executor)
        server = self._server(ApiContext(pool, generator, settings.api, int(time.time())))
        self._catch_signals()
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        try:
            await self._load_and_wait(model, serving)
        finally:
            generator.drain()
            await self._drain(server, serving, model)
            self.has_stuck_thread = await _is_stuck(executor, settings.service.text_threads)
            executor.shutdown(wait=False, cancel_futures=True)

    async def _load_and_wait(self, model: Model, serving: asyncio.Task[None]) -> None:
        """Return when told to stop. Raises ModelLoadError."""
        loading = asyncio.create_task(model.load())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({loading, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                self._announce(model, loading.result())
                await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loading.cancel()
            stopping.cancel()
            await asyncio.gather(loading, stopping, return_exceptions=True)

    async def _drain(self, server: _Server, serving: asyncio.Task[None], model: Model) -> None:
        """Stop accepting, give running answers the grace period, tell the rest, end the worker."""
        server.should_exit = True
        if active := model.supervisor.active:
            log.info(
                "stopping; %d running requests have %g s to end (Ctrl-C ends at once)",
                active,
                self._settings.shutdown_timeout_s,
            )
        _, late = await asyncio.wait({serving}, timeout=self._settings.shutdown_timeout_s)
        model.supervisor.fail_streams(ShuttingDown("The server is shutting down."))
        closing = asyncio.create_task(model.close())
        if late:
            await asyncio.wait({serving}, timeout=LAST_WORDS_S)
            server.force_exit = True
        await closing
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    def _server(self, context: ApiContext) -> _Server:
        return _Server(
            uvicorn.Config(
                asgi_app(context),
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=75,
            )
        )

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if self._stop.is_set() and number == signal.SIGINT:
            # The workers end by themselves when this process is gone.
            os._exit(130)
        self._stop.set()

    def _announce(self, model: Model, ready: Ready) -> None:
        address = url(self._listener)
        key = " -H 'Authorization: Bearer YOUR_KEY'" if self._settings.api.api_keys else ""
        route, body = (
            ("chat/completions", '{"messages": [{"role": "user", "content": "Hello!"}]}')
            if model.chats
            else ("completions", '{"prompt": "Once upon a time", "max_tokens": 50}')
        )
        if not model.chats:
            log.warning("the model has no chat template: /v1/completions works, chat does not")
        text = (
            f"Bramley {__version__} serves {model.names[0]} at {address}/v1 "
            f"({ready.dtype} on {ready.device}, loaded in {ready.load_s:.1f} s). Ctrl-C stops it.\n"
            f"Try: curl {address}/v1/{route} -H 'Content-Type: application/json'{key} -d '{body}'"
        )
        with contextlib.suppress(OSError):
            print(text, flush=True)  # noqa: T201 - the one thing a person waits for
