"""The log: lines on standard error."""

import logging
import sys


def configure(level: str) -> None:
    """Send every logger's lines of at least ``level`` to standard error. Called once, at start."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    # Their lines at info level tell about every request what the access log says already.
    for name in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
