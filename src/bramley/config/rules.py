"""Options that land in ``Settings`` together with others, and the few values that depend on the machine.

Each rule reads the values and puts its results, by dotted path, into ``landing``; what a user should know of it
goes into ``notes``.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bramley.config.row import VLLM_MLX
from bramley.config.settings import Dialect
from bramley.domain.errors import StartupError


@dataclass(frozen=True)
class Values:
    """Values by option name; ``given`` are the names of those that are no defaults."""

    by_name: Mapping[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.by_name.get(name)


def combine(
    dialect: Dialect, values: Values, environ: Mapping[str, str], platform: str = sys.platform
) -> tuple[dict[str, Any], list[str]]:
    """The landing of all options that have no path of their own, and notes."""
    landing: dict[str, Any] = {
        "api.owned_by": dialect,
        "api.api_keys": _keys(values["api-key"], values["api-key-file"]),
        "cache_dir": values["cache-dir"] or cache_dir(environ, platform),
        "engine.max_num_seqs": values["max-num-seqs"],
    }
    notes: list[str] = []
    if dialect == VLLM_MLX:
        landing["engine.max_num_seqs"] = _concurrency(values, notes)
        landing["engine.prefill_chunk"] = _prefill_chunk(values)
    landing["service.max_in_flight"] = landing["engine.max_num_seqs"] + values["max-queue"]
    _cap_max_tokens(values, landing, notes)
    return landing, notes


def cache_dir(environ: Mapping[str, str], platform: str) -> str:
    """Where Bramley keeps what it can make again. The XDG base directory rules; a relative XDG path is ignored."""
    xdg = environ.get("XDG_CACHE_HOME", "")
    if Path(xdg).is_absolute():
        return str(Path(xdg) / "bramley")
    home = environ.get("HOME", "")
    if not home:
        try:
            home = str(Path.home())
        except RuntimeError:
            raise StartupError("there is no home directory to keep converted models in: give --cache-dir") from None
    return str(Path(home) / ("Library/Caches" if platform == "darwin" else ".cache") / "bramley")


def _keys(keys: tuple[str, ...], file: str | None) -> tuple[str, ...]:
    found = list(keys)
    if file is not None:
        try:
            lines = Path(file).read_text("utf-8").splitlines()
        except OSError as error:
            raise StartupError(f"--api-key-file {file}: {error.strerror or error}") from None
        except ValueError:
            raise StartupError(f"--api-key-file {file}: not a text file in UTF-8") from None
        read = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not read:
            raise StartupError(f"--api-key-file {file}: there is no key in it")
        found += read
    for key in found:
        # A header carries visible ASCII; any other key could never be presented.
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise StartupError("--api-key and --api-key-file: a key is made of visible ASCII characters without spaces")
    return tuple(dict.fromkeys(found))


def _concurrency(values: Values, notes: list[str]) -> int:
    most: int = values["max-num-seqs"]
    if values["continuous-batching"]:
        return min(most, values["completion-batch-size"] or most)
    notes += [
        f"--{name} has no effect without --continuous-batching: one sequence is generated at a time"
        for name in ("max-num-seqs", "completion-batch-size")
        if name in values.given
    ]
    return 1


def _prefill_chunk(values: Values) -> int:
    given: list[int] = [values[name] for name in ("prefill-step-size", "chunked-prefill-tokens") if values[name]]
    return min(given, default=0)


def _cap_max_tokens(values: Values, landing: dict[str, Any], notes: list[str]) -> None:
    default, ceiling = values["max-tokens"], values["max-request-tokens"]
    if default is None or ceiling is None or default <= ceiling:
        return
    landing["service.defaults.max_tokens"] = ceiling
    if "max-tokens" in values.given:
        notes.append(f"--max-tokens {default} is above --max-request-tokens: {ceiling} holds for both")
