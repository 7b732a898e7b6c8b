"""A test's end of a worker's socket: the real process, real frames, blocking calls with a deadline."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from bramley.domain.wire import (
    Failed,
    Finished,
    Load,
    Ping,
    Pong,
    Ready,
    Step,
    ToFront,
    ToWorker,
    WorkerMessage,
    frame,
    front_decoder,
)

REAL_WORKER = (sys.executable, "-m", "bramley.worker")
DEADLINE_S = 60.0

M = TypeVar("M", bound=ToFront)


class WorkerClient:
    """Starts a worker and talks to it. ``seen`` are all messages in the order they came."""

    def __init__(self, command: Sequence[str] = REAL_WORKER) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self.socket = ours
        self.seen: list[WorkerMessage] = []
        self.nonce = 0
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def send(self, *messages: ToWorker) -> None:
        self.socket.sendall(b"".join(frame(message) for message in messages))

    def receive(self, deadline_s: float = DEADLINE_S) -> WorkerMessage | None:
        """The next message; None when the worker has closed its end."""
        until = time.monotonic() + deadline_s
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            self.socket.settimeout(max(0.01, until - time.monotonic()))
            data = self.socket.recv(1 << 16)
            if not data:
                return None
            self._received += data
        end = 4 + int.from_bytes(self._received[:4], "big")
        message = front_decoder.decode(self._received[4:end])
        self._received = self._received[end:]
        self.seen.append(message)
        return message

    def until(self, wanted: type[M], matches: Callable[[M], bool] = lambda _: True) -> M:
        """Read on until a message of a type comes. Fails when the worker ends before."""
        while (message := self.receive()) is not None:
            if isinstance(message, wanted) and matches(message):
                return message
        raise AssertionError(f"the worker ended before a {wanted.__name__}; it sent {self.seen[-3:]}")

    def pong(self, matches: Callable[[Pong], bool] = lambda _: True) -> Pong:
        """Ask again and again until the answer is as wanted."""
        while True:
            self.nonce += 1
            self.send(Ping(self.nonce))
            pong = self.until(Pong)
            if matches(pong):
                return pong

    def load(self, load: Load) -> Ready:
        self.send(load)
        return self.until(Ready)

    def ended(self, sequence: int) -> Finished | Failed:
        """Read on until a sequence has ended."""
        while (message := self.receive()) is not None:
            if isinstance(message, Finished | Failed) and message.sequence == sequence:
                return message
        raise AssertionError(f"the worker ended before sequence {sequence}; it sent {self.seen[-3:]}")

    def tokens(self, sequence: int) -> list[int]:
        """Everything seen of a sequence's answer so far."""
        rows = [row for message in self.seen if isinstance(message, Step) for row in message.rows]
        return [token for row in rows if row.sequence == sequence for token in row.token_ids]

    def exit_code(self, deadline_s: float = DEADLINE_S) -> int:
        """Read what still comes, so that the worker is not held up, and wait for its end."""
        while self.receive(deadline_s) is not None:
            pass
        return self.process.wait(deadline_s)
