"""A start that converts the embedded model, as a process: usage converter.py CACHE FORM [--hold] [--file-limit BYTES].

Prints a line for each report and the path at the end, or the error. With --hold it stops in the middle of the
conversion until a line comes in; with --file-limit the system refuses to let any file grow beyond that.
"""

import argparse
import resource
import sys
from pathlib import Path

from bramley.domain.errors import ModelLoadError
from bramley.domain.wire import Phase
from bramley.runners.embedded import Form, ensure


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("cache", type=Path)
    parser.add_argument("form", choices=("float32", "affine4"))
    parser.add_argument("--hold", action="store_true")
    parser.add_argument("--file-limit", type=int, default=0)
    arguments = parser.parse_args()
    form: Form = arguments.form
    holding = arguments.hold

    def report(phase: Phase, done: float, total: float, note: str) -> None:
        nonlocal holding
        say(f"{phase} {done / total:.3f} {note}")
        if holding and done > 0:
            holding = False
            say("held")
            sys.stdin.readline()

    if arguments.file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_limit, arguments.file_limit))
    try:
        say(f"path {ensure(arguments.cache, report, form)}")
    except ModelLoadError as error:
        say(f"error {error.message}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
