"""``vllm-mlx serve`` takes every flag of the command it is named for (seed_flags.json)."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bramley.config.kinds import Choice, Flag, Integer, Number
from bramley.config.options import Resolved, resolve
from bramley.config.row import NotYet, Option, Refused
from bramley.config.table import options_of
from bramley.domain.errors import StartupError

SEED = json.loads((Path(__file__).parent / "seed_flags.json").read_text("utf-8"))
FLAGS = SEED["flags"]
OPTIONS = {option.name: option for option in options_of("vllm-mlx")}
KINDS: dict[str, type[Any]] = {"int": Integer, "float": Number, "flag": Flag}


def row(flag: dict[str, Any]) -> Option:
    return OPTIONS[flag["flag"].removeprefix("--")]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag["flag"])
def test_a_seed_flag_has_its_type_choices_and_default(flag: dict[str, Any]) -> None:
    option = row(flag)
    choices = flag.get("choices")
    if flag["type"] in KINDS:
        assert isinstance(option.kind, KINDS[flag["type"]])
    if choices:
        assert set(choices) <= set(
            option.kind.names if isinstance(option.kind, Choice) else getattr(option.kind, "only", ())
        )
    default = option.default_in("vllm-mlx")
    if flag["flag"] in SEED["other_default"]:
        assert default != flag["default"]
    else:
        assert (None if default == () else default) == flag["default"]


@pytest.mark.parametrize("flag", [f for f in FLAGS if f["default"] is not None], ids=lambda flag: flag["flag"])
def test_a_seed_flag_given_at_its_default_is_no_obstacle(flag: dict[str, Any]) -> None:
    option = row(flag)
    argv = ["m"]
    if flag["type"] != "flag":
        argv += [option.flag, str(flag["default"])]
    elif not flag["default"]:
        argv += [f"{option.flag}=false"]
    assert isinstance(resolve("vllm-mlx", argv, {"HOME": "/h"}), Resolved)


def given_in_earnest(option: Option) -> list[str]:
    """A value that asks for something."""
    match option.kind:
        case Flag():
            return [option.flag]
        case Integer(_, _, _, (first, *_)):
            return [option.flag, str(first)]
        case Integer():
            return [option.flag, str((option.default or 0) + 1)]
        case Number():
            return [option.flag, "0.25"]
        case Choice(names):
            return [option.flag, names[0]]
    return [option.flag, "something"]


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS.values() if isinstance(o.status, (NotYet, Refused))], ids=lambda o: o.name
)
def test_a_flag_whose_feature_is_missing_stops_the_start_with_one_line(option: Option) -> None:
    with pytest.raises(StartupError) as caught:
        resolve("vllm-mlx", ["m", *given_in_earnest(option)], {"HOME": "/h"})
    expected = "not there yet in this version" if isinstance(option.status, NotYet) else "is refused"
    assert caught.value.message.startswith(option.flag) and expected in caught.value.message
    assert "\n" not in caught.value.message


def test_the_number_of_refused_seed_flags_does_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    refused = [flag["flag"] for flag in FLAGS if isinstance(row(flag).status, (NotYet, Refused))]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(refused)} of {len(FLAGS)} seed flags are refused\n")
    assert len(refused) <= SEED["refused_at_most"]


def test_the_flags_refused_for_good_are_these() -> None:
    refused = {option.name for option in OPTIONS.values() if isinstance(option.status, Refused)}
    assert refused == {
        "trust-remote-code",
        *("enable-mtp", "mtp-num-draft-tokens", "mtp-optimistic"),
        *("specprefill", "specprefill-threshold", "specprefill-keep-pct", "specprefill-draft-model"),
    }
