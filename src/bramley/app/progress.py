"""Shows how far the model is, while it loads: a moving bar on a terminal, some lines in a log."""

import logging
import sys

from bramley.domain.wire import Progress

log = logging.getLogger("bramley.load")

WIDTH = 30


class ProgressLine:
    """Listener for ``Progress`` messages of one load."""

    def __init__(self, name: str) -> None:
        """``name`` is what the model is served as."""
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._last = ("", -1)

    def show(self, progress: Progress) -> None:
        share = min(progress.done / progress.total, 1.0) if progress.total > 0 else 0.0
        step = int(share * (100 if self._is_terminal else 4))
        if (progress.note or progress.phase, step) == self._last:
            return
        self._last = (progress.note or progress.phase, step)
        text = f"{progress.phase} {self._name if progress.phase == 'loading' else progress.note}".strip()
        if self._is_terminal:
            bar = "#" * int(share * WIDTH)
            end = "\n" if share >= 1.0 else ""
            sys.stderr.write(f"\r\033[K{text} [{bar:<{WIDTH}}] {share:4.0%}{end}")
            sys.stderr.flush()
        else:
            log.info("%s: %.0f %%", text, share * 100)
