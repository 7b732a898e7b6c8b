"""One worker process, from its start to its end. It is never reused: the supervisor makes a new one."""

import asyncio
import itertools
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from bramley.domain.errors import (
    BramleyError,
    GenerationFailed,
    InvalidRequest,
    ModelLoadError,
    Overloaded,
    WorkerDied,
)
from bramley.domain.wire import (
    VERSION,
    Cancel,
    Failed,
    Finished,
    Load,
    Ping,
    Pong,
    Progress,
    PromptLogprobs,
    Ready,
    Shutdown,
    Stats,
    Step,
    Submit,
    WorkerMessage,
    frame,
)
from bramley.workers.connection import Connection
from bramley.workers.stream import TokenStream

log = logging.getLogger("bramley.worker")

MAX_LINE = 4096
WORKER_COMMAND = (sys.executable, "-m", "bramley.worker")
_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR}


class WorkerProcess:
    """Implements ``WorkerHandle``. ``exited`` is set when the process is gone and all its streams have failed."""

    def __init__(self, on_progress: Callable[[Progress], None]) -> None:
        self.exited = asyncio.Event()
        self.pong: Pong | None = None
        self.stats = Stats()
        self.finished = 0
        self._on_progress = on_progress
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._streams: dict[int, TokenStream] = {}
        self._numbers = itertools.count(1)
        self._last_lines: deque[str] = deque(maxlen=5)
        self._failure: str | None = None
        self._connection: Connection
        self._process: asyncio.subprocess.Process
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(
        cls, load: Load, on_progress: Callable[[Progress], None], command: Sequence[str] = WORKER_COMMAND
    ) -> "WorkerProcess":
        """Spawn the process in a session of its own, so that Ctrl-C reaches the front alone, and send ``load``."""
        self = cls(on_progress)
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            self._process = await asyncio.create_subprocess_exec(
                *command,
                "--fd",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
        except OSError as error:
            ours.close()
            raise ModelLoadError(f"The worker process could not be started: {error.strerror}.") from error
        finally:
            theirs.close()
        self._connection = await Connection.open(ours, self._received, self._lost)
        self._tasks = [asyncio.create_task(self._relay_log()), asyncio.create_task(self._reap())]
        self._connection.send(load)
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ready(self) -> Ready:
        return self._ready.result()

    @property
    def failure(self) -> str:
        """Why the process ended; completes "The worker ..."."""
        return self._failure or _cause(self._process.returncode or 0)

    @property
    def active(self) -> int:
        return len(self._streams)

    async def loaded(self) -> Ready:
        """Wait for the model. Raises ModelLoadError with one sentence when it cannot be loaded."""
        return await asyncio.shield(self._ready)

    def submit(self, make: Callable[[int], Submit], buffer_tokens: int) -> TokenStream:
        number = next(self._numbers)
        message = frame(make(number))
        stream = TokenStream(number, buffer_tokens, self._cancel)
        if self.exited.is_set():
            stream.fail(WorkerDied("The model's worker process has just ended; try again."))
            return stream
        self._streams[number] = stream
        self._connection.write(message)
        return stream

    def ping(self, nonce: int) -> None:
        self._connection.send(Ping(nonce))

    def fail_streams(self, error: BramleyError) -> None:
        """End every stream with ``error`` and tell the worker to stop working on them."""
        for stream in list(self._streams.values()):
            self._cancel(stream.sequence, None)
            stream.fail(error)
        self._streams.clear()

    def kill(self, reason: str) -> None:
        """End a process that no longer answers; ``reason`` completes "The worker ..."."""
        self._failure = self._failure or reason
        self._kill_if_alive()

    async def stop(self, grace_s: float) -> None:
        """Ask the worker to exit, wait ``grace_s``, then kill it."""
        self._failure = self._failure or "was stopped"
        self._connection.send(Shutdown())
        try:
            async with asyncio.timeout(grace_s):
                await self.exited.wait()
        except TimeoutError:
            self.kill("was stopped")
            await self.exited.wait()

    def _cancel(self, sequence: int, keep_tokens: int | None) -> None:
        self._connection.send(Cancel(sequence, keep_tokens))

    def _received(self, message: WorkerMessage) -> None:
        match message:
            case Step() | PromptLogprobs() | Finished() | Failed(sequence=int()):
                self._deliver(message)
            case Failed():
                self._failed(message)
            case Stats():
                self._take_stats(message)
            case Pong():
                self.pong = message
            case Progress():
                self._on_progress(message)
            case Ready():
                self._is_ready(message)
            case _:
                log.debug("ignored a %s message", type(message).__name__)

    def _take_stats(self, stats: Stats) -> None:
        self.stats = stats
        for one in stats.sequences:
            if (stream := self._streams.get(one.sequence)) is not None:
                stream.saw(one.prefilled_tokens + one.generated_tokens)

    def _deliver(self, message: Step | PromptLogprobs | Finished | Failed) -> None:
        """To its stream; one that was given up is not there any more, and late tokens for it are dropped."""
        if isinstance(message, Step):
            for row in message.rows:
                if (stream := self._streams.get(row.sequence)) is not None:
                    stream.push(row)
            return
        if isinstance(message, PromptLogprobs):
            if (stream := self._streams.get(message.sequence)) is not None:
                stream.prompt_logprobs = message.rows
            return
        self.finished += isinstance(message, Finished)
        if (stream := self._streams.pop(message.sequence or 0, None)) is not None:
            if isinstance(message, Finished):
                stream.finish(message)
            else:
                stream.fail(_error_of(message))

    def _is_ready(self, message: Ready) -> None:
        if message.version != VERSION:
            self.kill(f"speaks version {message.version} of the protocol, not {VERSION}")
        elif not self._ready.done():
            self._ready.set_result(message)

    def _failed(self, message: Failed) -> None:
        """The worker itself failed, and will end."""
        if not self._ready.done():
            self._ready.set_exception(ModelLoadError(message.message))
            self._ready.exception()
        else:
            self._failure = message.message

    def _lost(self) -> None:
        """The worker closed its end: it is exiting. One that closes but does not exit is killed."""
        asyncio.get_running_loop().call_later(1.0, self._kill_if_alive)

    def _kill_if_alive(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def _reap(self) -> None:
        await self._process.wait()
        reason = self.failure
        said = f", saying: {self._last_lines[-1][:200]}" if self._last_lines else ""
        # What the worker sent just before it ended is still in the socket.
        await asyncio.sleep(0)
        self._connection.close()
        if not self._ready.done():
            self._ready.set_exception(ModelLoadError(f"While the model was being loaded, the worker {reason}{said}."))
            self._ready.exception()
        for stream in self._streams.values():
            stream.fail(WorkerDied(f"While it was working on this request, the model's worker process {reason}."))
        self._streams.clear()
        self.exited.set()

    async def _relay_log(self) -> None:
        """Pass the worker's lines on: ``LEVEL message`` as such, anything else (a C++ abort) as an error."""
        assert self._process.stdout is not None
        async for text in _lines(self._process.stdout):
            level, _, rest = text.partition(" ")
            if level in _LEVELS:
                log.log(_LEVELS[level], "%s", rest)
            elif text:
                log.error("%s", text)
                self._last_lines.append(text)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines of at most ``MAX_LINE`` characters; the rest of a longer one is dropped."""
    rest = b""
    while data := await stream.read(1 << 16):
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line[:MAX_LINE].decode(errors="replace").rstrip()
        rest = rest[:MAX_LINE]
    yield rest.decode(errors="replace")


def _error_of(message: Failed) -> BramleyError:
    match message.kind:
        case "request":
            return InvalidRequest(message.message)
        case "overloaded":
            return Overloaded(message.message)
        case _:
            return GenerationFailed(message.message)


def _cause(returncode: int) -> str:
    if returncode == -signal.SIGKILL:
        return "was killed by the system, as it does when memory runs out"
    if returncode < 0:
        return f"was ended by signal {-returncode} ({signal.strsignal(-returncode)})"
    return f"ended with exit code {returncode}"
