"""The text of ``--help``."""

import textwrap
from collections.abc import Sequence

from bramley.config.row import GROUPS, NotYet, Option, Refused
from bramley.config.settings import Dialect

_WIDTH = 100
_INDENT = 32


def help_text(dialect: Dialect, options: Sequence[Option]) -> str:
    """Usage, every option that is there, by group, and the names of those that are not."""
    there = [option for option in options if not isinstance(option.status, (NotYet, Refused))]
    model = next(option for option in options if option.positional)
    usage = model.flag if dialect in model.required else f"[{model.flag}]"
    lines = [f"usage: {dialect} serve {usage} [options]", ""]
    for group in GROUPS:
        rows = [option for option in there if option.group == group]
        if rows:
            lines += [f"{group}:", *(line for option in rows for line in _entry(option, dialect)), ""]
    lines += _names("Not there yet in this version", [o.flag for o in options if isinstance(o.status, NotYet)])
    lines += _names("Refused (docs/options.md says why)", [o.flag for o in options if isinstance(o.status, Refused)])
    lines += textwrap.wrap(
        "Each option may also be given as an environment variable (--max-tokens: BRAMLEY_MAX_TOKENS) or in the YAML "
        "file of --config (max_tokens: 100). A flag goes before the environment, the environment before the file.",
        _WIDTH,
    )
    return "\n".join(lines) + "\n"


def _entry(option: Option, dialect: Dialect) -> list[str]:
    head = f"  {option.flag} {'' if option.positional else option.kind.metavar}".rstrip()
    if option.negatable:
        head += f", --no-{option.name}"
    default = option.default_in(dialect)
    text = option.help
    if default not in (None, (), "", False):
        text += f" (default: {option.shown(default)})"
    body = textwrap.wrap(text, _WIDTH - _INDENT)
    if len(head) <= _INDENT - 2:
        return [head.ljust(_INDENT) + body[0], *(" " * _INDENT + line for line in body[1:])]
    return [head, *(" " * _INDENT + line for line in body)]


def _names(title: str, flags: Sequence[str]) -> list[str]:
    if not flags:
        return []
    body = textwrap.wrap(", ".join(flags), _WIDTH - 2, break_on_hyphens=False)
    return [f"{title}:", *(f"  {line}" for line in body), ""]
