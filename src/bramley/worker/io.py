"""The worker's end of the socket and the one thread that serves it."""

import logging
import os
import queue
import selectors
import socket
import sys
import threading
from collections import deque

import msgspec

from bramley.domain.wire import MAX_MESSAGE_BYTES, FrontMessage, Ping, Pong, ToFront, frame, worker_decoder
from bramley.worker.phase import PhaseClock

log = logging.getLogger(__name__)

_READ_BYTES = 1 << 18


class Channel:
    """Messages in, messages out, heartbeats answered.

    The IO thread reads frames, answers Ping at once from the phase clock, and puts everything else in ``inbox``. When
    the front closes its end, or dies, it ends the process there and then, whatever the main thread computes.

    ``send`` may be called from any thread and never waits: what the socket does not take goes to a backlog that the
    IO thread writes when the front reads on. So a front that is slow to read cannot stop the main thread, and two
    full sockets cannot wait for each other.
    """

    def __init__(self, fd: int, clock: PhaseClock) -> None:
        self.inbox: queue.SimpleQueue[FrontMessage] = queue.SimpleQueue()
        self._clock = clock
        self._socket = socket.socket(fileno=fd)
        # Programs the worker starts (compilers) must not keep the connection open.
        self._socket.set_inheritable(False)
        self._socket.setblocking(False)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._lock = threading.Lock()
        self._backlog: deque[memoryview] = deque()
        self._drained = threading.Event()
        self._drained.set()
        self._received = bytearray()
        self._thread = threading.Thread(target=self._serve, name="io", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: ToFront, *, urgent: bool = False) -> None:
        """Send or queue a message; ``urgent`` ones go before what waits."""
        data = memoryview(frame(message))
        with self._lock:
            if self._backlog:
                # The first entry may be half on its way.
                self._backlog.insert(1 if urgent else len(self._backlog), data)
                return
            rest = self._write(data)
            if not rest:
                return
            self._backlog.append(rest)
            self._drained.clear()
        self._wake_writer.send(b"w")

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is in the socket; False when the front does not read for that long."""
        return self._drained.wait(timeout_s)

    def _write(self, data: memoryview) -> memoryview:
        """Write what the socket takes and give back the rest. The lock is held."""
        try:
            return data[self._socket.send(data) :]
        except BlockingIOError:
            return data
        except OSError:
            # The front is gone; the IO thread reads the end of file and ends the process.
            return memoryview(b"")

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._wake_reader, selectors.EVENT_READ)
            while True:
                for key, events in selector.select():
                    if key.fileobj is self._wake_reader:
                        self._wake_reader.recv(4096)
                    elif events & selectors.EVENT_READ:
                        self._read()
                wanted = selectors.EVENT_READ if self._write_backlog() else selectors.EVENT_READ | selectors.EVENT_WRITE
                selector.modify(self._socket, wanted)

    def _write_backlog(self) -> bool:
        """Write what waits; True when nothing is left."""
        with self._lock:
            while self._backlog:
                rest = self._write(self._backlog[0])
                if rest:
                    self._backlog[0] = rest
                    return False
                self._backlog.popleft()
            self._drained.set()
            return True

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os._exit(0)
        self._received += data
        try:
            self._take_frames()
        except (msgspec.DecodeError, ValueError) as error:
            log.critical("The server sent something that is no message: %s", error)
            sys.stderr.flush()
            os._exit(1)

    def _take_frames(self) -> None:
        start = 0
        while len(self._received) - start >= 4:
            begin = start + 4
            length = int.from_bytes(self._received[start:begin], "big")
            if length > MAX_MESSAGE_BYTES:
                raise ValueError(f"a message of {length} bytes")
            if len(self._received) < begin + length:
                break
            with memoryview(self._received) as view, view[begin : begin + length] as body:
                message = worker_decoder.decode(body)
            start = begin + length
            if isinstance(message, Ping):
                self._answer(message)
            else:
                self.inbox.put(message)
        del self._received[:start]

    def _answer(self, ping: Ping) -> None:
        beat = self._clock.beat
        pong = Pong(nonce=ping.nonce, phase=beat.phase, beat=beat.count, busy_s=self._clock.busy_s(beat))
        self.send(pong, urgent=True)
