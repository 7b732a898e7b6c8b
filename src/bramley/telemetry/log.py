"""The log: lines on standard error, written by a thread of their own."""

import logging
import logging.handlers
import queue
import sys
import threading
import time

# A reader of the log that stops reading costs lines, never answers.
MAX_WAITING_LINES = 10_000


class LineFormatter(logging.Formatter):
    """Control characters of a message, which may come from a client, are shown and not obeyed."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return "".join(
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().formatMessage(record)
        )


class DroppingHandler(logging.handlers.QueueHandler):
    """Hands records to the writing thread; when too many wait, it drops them."""

    def __init__(self, waiting: "queue.Queue[str]", formatter: logging.Formatter) -> None:
        super().__init__(waiting)
        self._waiting = waiting
        self.setFormatter(formatter)

    def prepare(self, record: logging.LogRecord) -> str:
        return self.format(record)

    def enqueue(self, record: str) -> None:  # type: ignore[override] # what prepare gives
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            return


class Log:
    """Writes what is logged until the process ends."""

    def __init__(self, level: str) -> None:
        """Send every logger's lines of at least ``level`` to standard error."""
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING_LINES)
        formatter = LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        root = logging.getLogger()
        root.handlers = [DroppingHandler(self._waiting, formatter)]
        root.setLevel(level.upper())
        # Their lines at info level tell about every request what the access log says already.
        for name in ("httpx", "httpcore", "asyncio", "uvicorn"):
            logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
        threading.Thread(target=self._write, name="log", daemon=True).start()

    def flush(self, timeout_s: float) -> None:
        """Wait until all lines are written, but no longer than ``timeout_s``."""
        end = time.monotonic() + timeout_s
        while self._waiting.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.01)

    def _write(self) -> None:
        while True:
            line = self._waiting.get()
            try:
                sys.stderr.write(f"{line}\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                pass
            finally:
                self._waiting.task_done()
