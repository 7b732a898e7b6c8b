"""``python -m bramley`` is the command ``bramley``."""

import sys

from bramley.cli.main import bramley

if __name__ == "__main__":
    sys.exit(bramley())
