"""Writes docs/options.md from the option table: ``python -m bramley.config.docs [FILE]``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from bramley.config.row import BRAMLEY, GROUPS, VLLM_MLX, NoEffect, NotYet, Option, Refused, Works
from bramley.config.settings import Dialect
from bramley.config.table import options_of

_HEAD = """\
# Options

This page is written from the option table by `python -m bramley.config.docs`.

An option has one name in four forms: the flag `--max-tokens`, the environment variable `BRAMLEY_MAX_TOKENS`, the key
`max_tokens` of the YAML file named by `--config` (or `BRAMLEY_CONFIG`), and the row below. A flag goes before the
environment, the environment before the file, the file before the default. `serve --check` prints what holds, where
each value comes from and how much memory the model will take, and exits.

- The last of several flags counts, except where several values are accepted: those add up, and may also be given with
  commas between them (in YAML as a list).
- A key of the file that is no option stops the start; so do a variable that is set but empty and a value that does not
  fit. A variable `BRAMLEY_...` that is no option is named in a note.
- A relative path starts at the directory the command is run in, also in the file. `~` is the home directory.
- API keys are never printed. Prefer `--api-key-file` or the environment: other users of the machine can read flags.
"""

_REFUSED = """\
### Why they are refused

**Multi-token prediction** (`--enable-mtp` and what belongs to it). The extra heads a model was trained with are dropped
by most conversions to MLX, so for most models there is nothing to draft with; and every model family wires them
differently, so each would need its own version of the forward pass. With `--mtp-optimistic`, drafted tokens are not
even checked.

**SpecPrefill** (`--specprefill` and what belongs to it). It lets a small model choose which prompt tokens the large one
gets to see. What comes out is the answer to a shorter prompt than the one sent, and nothing in the answer tells.

**Code of a model** (`--trust-remote-code`). Whoever may put files into a model directory could run programs as the
user of the server.
"""

_DEPARTURES = """\
### Where `vllm-mlx serve` departs from the command it is named for

- `--completion-batch-size` has no default: with `--continuous-batching`, `--max-num-seqs` alone limits the sequences.
- `--prefill-step-size` has no default: the number of prompt tokens per step suits the device.
- `--served-model-name` and `--api-key` accept several values.
- A default of `--max-tokens` above `--max-request-tokens` is lowered to it.
- A flag is not completed: `--max-tok` is an error.
"""

_NOT_YET = "Given with another value than the default they stop the start, as does {always} in any case."
_REFUSED_LEAD = "Given with another value than the default they stop the start; the reasons are below."


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, _bramley(), _vllm_mlx(), _REFUSED, _DEPARTURES])


def _bramley() -> str:
    options = options_of(BRAMLEY)
    lines = ["## `bramley serve`", ""]
    for group in GROUPS:
        lines += _table(group, [option for option in options if option.group == group], BRAMLEY)
    return "\n".join(lines)


def _vllm_mlx() -> str:
    own = [option for option in options_of(VLLM_MLX) if BRAMLEY not in option.dialects or _differs(option)]
    lacking = [f"`{option.flag}`" for option in options_of(BRAMLEY) if VLLM_MLX not in option.dialects]
    late = [option for option in own if isinstance(option.status, NotYet)]
    always = [f"`{o.flag}`" for o in late if isinstance(o.status, NotYet) and o.status.neutral is not None]
    refused = [option for option in own if isinstance(option.status, Refused)]
    idle = [option for option in own if isinstance(option.status, NoEffect)]
    used = [option for option in own if isinstance(option.status, Works)]
    lead = f"Every option of `bramley serve` but {', '.join(lacking)}, and these, some with another default:"
    lines = ["## `vllm-mlx serve`", "", lead, ""]
    for group in GROUPS:
        lines += _table(group, [option for option in used if option.group == group], VLLM_MLX)
    lines += _table("Accepted, no effect", idle, VLLM_MLX)
    lines += _table("Not there yet", late, VLLM_MLX, _NOT_YET.format(always=", ".join(always)))
    lines += _table("Refused", refused, VLLM_MLX, _REFUSED_LEAD)
    return "\n".join(lines)


def _differs(option: Option) -> bool:
    return VLLM_MLX in option.required or option.default_in(VLLM_MLX) != option.default_in(BRAMLEY)


def _table(title: str, options: Sequence[Option], dialect: Dialect, lead: str = "") -> list[str]:
    if not options:
        return []
    head = ["| flag | environment | YAML | value | default | |", "|---|---|---|---|---|---|"]
    return [
        f"### {title}",
        "",
        *([lead, ""] if lead else []),
        *head,
        *(_row(option, dialect) for option in options),
        "",
    ]


def _row(option: Option, dialect: Dialect) -> str:
    flag = f"`{option.flag}`" + (f", `--no-{option.name}`" if option.negatable else "")
    key = "" if option.group == "Command" else f"`{option.key}`"
    default = "required" if dialect in option.required else option.shown(option.default_in(dialect))
    if option.positional and default == "none":
        default = "the embedded model"
    value = option.kind.wanted.partition(" (")[0]
    cells = (flag, f"`{option.variable}`", key, value, default, _text(option))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _text(option: Option) -> str:
    match option.status:
        case NotYet(feature, _):
            return f"{option.help} Missing: {feature}."
        case NoEffect(reason):
            return f"{option.help} No effect: {reason}."
    return option.help


def main() -> None:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/options.md")
    file.write_text(render(), "utf-8")


if __name__ == "__main__":
    main()
