"""Facts of a configuration, under the names that families of models use."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bramley.runners.facts import model_facts

CASES = json.loads((Path(__file__).parent / "facts.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_facts_are_found_under_the_names_of(case: dict[str, Any]) -> None:
    found = asdict(model_facts(case["config"]))
    assert {name: found[name] for name in case["facts"]} == {
        name: tuple(value) if isinstance(value, list) else value for name, value in case["facts"].items()
    }
