"""A real server: a process of its own, a real socket, a real model."""

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
from openai import AsyncOpenAI, OpenAI

from tests.support.paths import CACHE

Found = TypeVar("Found")

# Compiled once for all the servers a test run starts, also where the environment says not to.
PYTHON_ENV = {"PYTHONPYCACHEPREFIX": str(CACHE / "bytecode"), "PYTHONDONTWRITEBYTECODE": ""}
START_S = 180.0
ANNOUNCED = re.compile(r"at (http://\S+)/v1")


class Server:
    """One running ``bramley serve``. Its output is read by a thread, so that it never blocks."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        dialect: str = "bramley",
        *,
        port: int | None = 0,
        before: str = "",
    ) -> None:
        """``before`` is Python that the process runs first; ``port`` None leaves the port to ``args``."""
        self.lines: list[str] = []
        self._clients: list[OpenAI] = []
        self._announced: queue.Queue[str] = queue.Queue()
        program = (
            f"{before}import sys; from bramley.cli.main import {dialect.replace('-', '_')} as main; sys.exit(main())"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, "serve", *args, *([] if port is None else ["--port", str(port)])],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **PYTHON_ENV, **(env or {})},
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.append(line.rstrip())
                if found := ANNOUNCED.search(line):
                    self._announced.put(found.group(1))
        self._announced.put("")

    def wait_ready(self) -> "Server":
        self.url = self._announced.get(timeout=START_S)
        assert self.url, "\n".join(self.lines)
        return self

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def worker(self) -> psutil.Process:
        children = [p for p in psutil.Process(self.pid).children() if "bramley.worker" in " ".join(p.cmdline())]
        assert len(children) == 1, children
        return children[0]

    def openai(self, **options: Any) -> OpenAI:
        """Closed with the server."""
        client = OpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})
        self._clients.append(client)
        return client

    def async_openai(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", **{"api_key": "none", "max_retries": 0, **options})

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{"timeout": 120, **options})

    def health(self) -> dict[str, Any]:
        with self.http() as client:
            found: dict[str, Any] = client.get("/health").json()
            return found

    def wait_health(self, *wanted: str, within_s: float = 60.0) -> dict[str, Any]:
        """Poll until the status is one of ``wanted``."""
        return poll(self.health, lambda found: found["status"] in wanted, within_s)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self, within_s: float = 30.0) -> int:
        code = self.process.wait(within_s)
        self._reader.join(5)
        return code

    def stop(self) -> None:
        for client in self._clients:
            client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)


async def create(client: AsyncOpenAI, body: dict[str, Any], **more: Any) -> Any:
    """A chat through the SDK, whose types do not take a body out of a data file."""
    call: Any = client.chat.completions.create
    return await call(**body, **more)


def poll(read: Callable[[], Found], good: Callable[[Found], bool], within_s: float) -> Found:
    """Read until the value is good; fails with the last value when that takes too long."""
    end = time.monotonic() + within_s
    while True:
        found = read()
        if good(found):
            return found
        assert time.monotonic() < end, f"still {found!r} after {within_s} s"
        time.sleep(0.05)


@contextlib.contextmanager
def serving(*args: str | Path, env: Mapping[str, str] | None = None, dialect: str = "bramley") -> Iterator[Server]:
    """A server that is ready, for the length of a ``with`` block."""
    server = Server([str(arg) for arg in args], env, dialect)
    try:
        yield server.wait_ready()
    finally:
        server.stop()


def is_idle(server: Server) -> bool:
    """Whether the worker computes nothing: it takes no processor time for a moment."""
    worker = server.worker()
    before = sum(worker.cpu_times()[:2])
    time.sleep(0.4)
    return sum(worker.cpu_times()[:2]) - before < 0.05


def sse(response: httpx.Response) -> Iterator[dict[str, Any] | str]:
    """The data of each server-sent event: JSON, or the text ``[DONE]``."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)
