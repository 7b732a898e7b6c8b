"""``bramley serve`` and ``vllm-mlx serve``: settle the settings, then serve or only report them."""

import sys
from importlib import import_module
from typing import cast

from bramley import __version__
from bramley.cli.check import report
from bramley.config.memory import plan_of, shown_bytes
from bramley.config.options import Help, resolve
from bramley.config.settings import Dialect, Settings
from bramley.config.sources import environment, quiet_libraries
from bramley.domain.errors import ModelLoadError

# By name, because it loads the web framework and transformers, which --help and --check do not need.
SERVER = "bramley.app.server"


def run(dialect: str, argv: list[str]) -> int:
    """Raises StartupError."""
    resolved = resolve(cast(Dialect, dialect), argv, environment())
    if isinstance(resolved, Help):
        sys.stdout.write(resolved.text)
        return 0
    if resolved.check:
        sys.stdout.write(report(resolved))
        return 0
    refuse_what_cannot_fit(resolved.settings)
    quiet_libraries()
    # The next imports take seconds; silence would look like a fault.
    sys.stderr.write(f"Bramley {__version__} starts\n")
    return cast(int, import_module(SERVER).run(resolved.settings, resolved.notes))


def refuse_what_cannot_fit(settings: Settings) -> None:
    """Read the model's files before anything is started. Raises ModelLoadError."""
    memory = plan_of(settings)
    if not memory.fits:
        raise ModelLoadError(
            f"The model's weights take {shown_bytes(memory.weights_held)}, but this machine has "
            f"{shown_bytes(memory.physical)} of memory; choose a smaller model, or --dtype float16."
        )
