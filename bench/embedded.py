"""The embedded model as a directory any server can load: ``python -m bench.embedded`` prints its path.

A process of its own, so that the load client holds neither MLX nor its memory.
"""

import os
import sys
from pathlib import Path

from bramley.config.rules import cache_dir
from bramley.runners.embedded import ensure


def main() -> None:
    path = ensure(Path(cache_dir(os.environ, sys.platform)), lambda *_: None)
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
