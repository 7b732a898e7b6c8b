"""From flags, environment, file and defaults to ``Settings``; the former go before the latter."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from bramley.config import rules, sources
from bramley.config.help import help_text
from bramley.config.row import NoEffect, NotYet, Option, Refused
from bramley.config.settings import Dialect, Settings
from bramley.config.sources import Given
from bramley.config.table import OPTIONS, options_of
from bramley.domain.errors import StartupError


class Help(msgspec.Struct, frozen=True):
    """``--help`` was asked for."""

    text: str


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """``notes`` are sentences for the log: what was given and has no effect, and why.

    ``values`` are those given or the defaults, by option name; the API keys are among them, so show a value with
    ``Option.shown``. ``check``: print what there is and do not serve.
    """

    settings: Settings
    values: dict[str, Any]
    notes: tuple[str, ...] = ()
    check: bool = False


def resolve(dialect: Dialect, argv: Sequence[str], environ: Mapping[str, str]) -> Resolved | Help:
    """Settings of one ``serve`` command.

    Raises ``StartupError`` with one line: an unknown flag or key, a value that does not fit, a file that cannot be
    read, a feature that is not there.
    """
    options = options_of(dialect)
    if not options:
        raise StartupError(f"{dialect} is not there yet in this version: use bramley serve")
    flags = sources.from_flags(options, argv)
    if flags is None:
        return Help(help_text(dialect, options))
    variables, notes = sources.from_environment(options, environ, (option.variable for option in OPTIONS))
    given = variables | flags
    if config := given.get("config"):
        given = sources.from_file(options, config.value) | given
    for option in options:
        if dialect in option.required and option.name not in given:
            raise StartupError(f"{dialect} serve needs a {option.flag}: {option.help[0].lower()}{option.help[1:]}")
        if option.name in given:
            notes += _judge(option, option.default_in(dialect), given[option.name])
    values = {option.name: option.default_in(dialect) for option in options}
    values |= {name: value.value for name, value in given.items()}
    landing, more = rules.combine(dialect, rules.Values(values, frozenset(given)), environ)
    landing = {option.to: values[option.name] for option in options if option.to} | landing
    origins = {option.name: given[option.name].origin if option.name in given else "default" for option in options}
    settings = _build({**landing, "dialect": dialect, "origins": origins})
    return Resolved(settings=settings, values=values, notes=(*notes, *more), check=values["check"])


def _judge(option: Option, default: Any, given: Given) -> list[str]:
    """Notes on a given value; raises if what it asks for is not there."""
    match option.status:
        case NoEffect(reason):
            return [f"{option.flag} has no effect: {reason}{given.where}"]
        case NotYet(feature, neutral):
            if given.value != (default if neutral is None else neutral):
                raise StartupError(
                    f"{option.flag} cannot be used: {feature} is not there yet in this version{given.where}"
                )
            return [f"{option.flag} has no effect: {feature} is not there yet in this version{given.where}"]
        case Refused(reason):
            if given.value != default:
                raise StartupError(f"{option.flag} is refused: {reason}; see docs/options.md{given.where}")
            return [f"{option.flag} has no effect: {reason}{given.where}"]
    return []


def _build(landing: Mapping[str, Any]) -> Settings:
    tree: dict[str, Any] = {}
    for path, value in landing.items():
        *parents, leaf = path.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return msgspec.convert(tree, Settings)
