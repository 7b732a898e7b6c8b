"""Every field a client may send is in one of the tables, and the page on fields is written from them."""

from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from bramley.api.openai import fields
from bramley.api.openai.docs import render
from bramley.api.openai.fields import ELSEWHERE, HONOURED, REFUSED, WITHOUT_EFFECT, FieldCheck
from bramley.api.openai.schema import ChatBody, CompletionBody
from bramley.domain.errors import InvalidRequest

PAGE = Path(__file__).parents[2] / "docs" / "api-fields.md"
BODIES: dict[str, type[ChatBody] | type[CompletionBody]] = {"chat": ChatBody, "completions": CompletionBody}
SDK = {
    "chat": set(chat_create_params.CompletionCreateParamsBase.__annotations__),
    "completions": set(completion_create_params.CompletionCreateParamsBase.__annotations__),
}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == render(), "run: make docs"


def test_every_honoured_field_is_in_a_schema_and_the_other_way_round() -> None:
    assert set(ChatBody.model_fields) | set(CompletionBody.model_fields) == set(HONOURED)


def test_a_field_has_one_fate() -> None:
    tables: list[set[str]] = [set(HONOURED), set(WITHOUT_EFFECT), set(REFUSED)]
    assert sum(map(len, tables)) == len(set().union(*tables))


@pytest.mark.parametrize("name", BODIES)
def test_a_field_of_the_other_protocol_is_refused_by_name(name: str) -> None:
    assert set(HONOURED) - set(BODIES[name].model_fields) <= set(ELSEWHERE)


@pytest.mark.parametrize("name", BODIES)
def test_every_field_of_the_official_client_is_known(name: str) -> None:
    known = {*HONOURED, *WITHOUT_EFFECT, *REFUSED}
    assert len(SDK[name]) > 15 and SDK[name] - known == set()


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"tools": [{}]}, "tools"),
        ({"skip_special_tokens": 1}, "skip_special_tokens"),
        ({"made_up": 1}, "made_up"),
    ],
)
def test_a_strict_server_names_what_it_does_not_know(extra: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        FieldCheck(strict=True).check(extra)
    assert caught.value.param == param


def test_null_and_neutral_values_are_no_wishes() -> None:
    check = FieldCheck(strict=True)
    check.check({name: None for name in [*REFUSED, *ELSEWHERE, *WITHOUT_EFFECT]})
    for name, values in REFUSED.items():
        for value in values:
            check.check({name: value})
    check.check({name: object() for name in WITHOUT_EFFECT})


def test_a_lenient_server_logs_each_unknown_name_once(caplog: pytest.LogCaptureFixture) -> None:
    check = FieldCheck()
    for _ in range(3):
        check.check({"made_up": 1, "other": 2})
    assert [record.getMessage().split("'")[1] for record in caplog.records] == ["made_up", "other"]
    assert {record.name for record in caplog.records} == {fields.log.name}
