"""Where values come from: the command line, the environment, a YAML file."""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bramley.config.kinds import Flag, Kind
from bramley.config.row import Option
from bramley.domain.errors import StartupError

HELP = ("-h", "--help")
_PREFIX = "BRAMLEY_"


@dataclass(frozen=True)
class Given:
    """A value someone gave, and where: "flag", "environment BRAMLEY_PORT", "file config.yaml"."""

    value: Any
    origin: str

    @property
    def where(self) -> str:
        return where(self.origin)


def where(origin: str) -> str:
    """The end of an error line; a flag is on the user's screen already."""
    return "" if origin == "flag" else f" ({origin})"


def environment() -> dict[str, str]:
    """The environment of this process."""
    return dict(os.environ)


def quiet_libraries() -> None:
    """Set what transformers and tokenizers read when they are imported; the user's own values stay.

    Without it the first says at each start that PyTorch is missing, which is as it should be.
    """
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def from_flags(options: Sequence[Option], argv: Sequence[str]) -> dict[str, Given] | None:
    """What the command line gives, by option name; None when it asks for help. The last of several wins.

    A value may begin with a dash, as keys do; only another flag of the table ends the search for it.
    """
    flags = {option.flag: option for option in options if not option.positional}
    negated = {f"--no-{option.name}": option for option in options if option.negatable}
    positional = next((option for option in options if option.positional), None)
    found: dict[str, Given] = {}
    words = list(argv)
    rest_is_plain = False
    while words:
        word = words.pop(0)
        if not rest_is_plain and word == "--":
            rest_is_plain = True
        elif not rest_is_plain and word in HELP:
            return None
        elif not rest_is_plain and word.startswith("-") and word != "-":
            name, equals, value = word.partition("=")
            if name in negated and not equals:
                found[negated[name].name] = Given(False, "flag")
                continue
            option = flags.get(name)
            if option is None:
                raise StartupError(f"{_plain(name)} is not a flag of this command{_nearest(name, [*flags, *negated])}")
            text = value if equals else _next_value(option, words, {*flags, *negated, *HELP})
            _add(found, option, _parsed(option, text, "flag"))
        elif positional is None or positional.name in found:
            raise StartupError(f"unexpected argument {word!r}: one MODEL is served, and flags begin with --")
        else:
            _add(found, positional, _parsed(positional, word, "flag"))
    return found


def from_environment(
    options: Sequence[Option], environ: Mapping[str, str], known: Iterable[str]
) -> tuple[dict[str, Given], list[str]]:
    """What the environment gives, and notes on variables that look like an option and are none of this command.

    ``known`` are the variables that are an option of some command. A variable that is set but empty is an error:
    it is more often an expansion that failed than a wish, and with a key it would leave the server open.
    """
    mine = {option.variable: option for option in options}
    found = {}
    for variable in sorted(mine.keys() & environ.keys()):
        option, origin = mine[variable], f"environment {variable}"
        if not environ[variable].strip():
            raise StartupError(f"{variable} is set but empty: give it a value or unset it")
        found[option.name] = Given(_parsed(option, environ[variable], origin), origin)
    others = sorted(name for name in environ.keys() - mine.keys() if name.startswith(_PREFIX))
    elsewhere = set(known)
    notes = [
        f"{_plain(name)} is set, but is an option of another command: ignored"
        if name in elsewhere
        else f"{_plain(name)} is set, but is not an option: ignored{_nearest(name, mine)}"
        for name in others
    ]
    return found, notes


def from_file(options: Sequence[Option], path: str) -> dict[str, Given]:
    """What a YAML file gives: one mapping, keys as option names with underscores or dashes."""
    mine = {option.key: option for option in options if option.group != "Command"}
    found: dict[str, Given] = {}
    for raw, value in _mapping(path).items():
        key = str(raw).replace("-", "_")
        if key not in mine:
            raise StartupError(f"{path}: {_plain(str(raw))} is not an option of this command{_nearest(key, mine)}")
        option, origin = mine[key], f"file {path}"
        try:
            found[option.name] = Given(option.kind.accept(value), origin)
        except ValueError:
            raise _unfit(option, value, origin) from None
    return found


class _Loader(yaml.SafeLoader):
    """Refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value).replace("-", "_")
            if name in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def _mapping(path: str) -> dict[Any, Any]:
    try:
        text = Path(path).read_text("utf-8")
    except OSError as error:
        raise StartupError(f"--config {path}: {error.strerror or error}") from None
    except ValueError:
        raise StartupError(f"--config {path}: not a text file in UTF-8") from None
    try:
        tree = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise StartupError(f"--config {path}{line}: not valid YAML ({error.problem or 'malformed'})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StartupError(f"--config {path}: not valid YAML ({' '.join(str(error).split())})") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise StartupError(f"--config {path}: expected lines of the form 'port: 8000'")
    return tree


def _next_value(option: Option, words: list[str], stops: set[str]) -> str:
    if isinstance(option.kind, Flag):
        return "true"
    if not words or words[0].partition("=")[0] in stops:
        raise StartupError(f"{option.flag} needs a value")
    return words.pop(0)


def _parsed(option: Option, text: str, origin: str) -> Any:
    try:
        return option.kind.parse(text)
    except ValueError:
        raise _unfit(option, text, origin) from None


def _unfit(option: Option, value: Any, origin: str) -> StartupError:
    kind: Kind = option.kind
    got = "" if option.secret else f", not {value!r}"
    return StartupError(f"{option.flag} must be {kind.wanted}{got}{where(origin)}")


def _add(found: dict[str, Given], option: Option, value: Any) -> None:
    if option.repeats and option.name in found:
        value = (*found[option.name].value, *value)
    found[option.name] = Given(value, "flag")


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
    return f" (did you mean {close[0]}?)" if close else ""


def _plain(text: str) -> str:
    """``text`` without line breaks and control characters, so that a line stays a line."""
    return repr(text)[1:-1]
