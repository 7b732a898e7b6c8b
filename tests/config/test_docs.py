"""The page on options is written from the table."""

from pathlib import Path

from bramley.config.docs import render
from bramley.config.table import OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "options.md"


def test_the_page_on_options_is_fresh() -> None:
    assert PAGE.read_text("utf-8") == render(), "run: make docs"


def test_the_page_names_every_option() -> None:
    page = render()
    assert [option.flag for option in OPTIONS if f"`{option.flag}`" not in page] == []
