"""Where tests keep what is slow to make."""

from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"
