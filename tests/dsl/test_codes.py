"""The page of problem codes is part of the package; the one in docs/ is a copy of it."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from flowdist.dsl.problems.codes import section, sections
from flowdist.errors import FlowdistError

ROOT = Path(__file__).parents[2]


def test_the_page_in_docs_is_that_of_the_package() -> None:
    page = files("flowdist.dsl.problems").joinpath("errors.md").read_bytes()
    assert (ROOT / "docs/errors.md").read_bytes() == page, "run: cp flowdist/dsl/problems/errors.md docs/errors.md"


def test_every_heading_of_the_page_is_a_section_with_a_text() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    assert len(sections()) == page.count("\n### ") > 40
    assert all(found.title and found.text and "###" not in found.text for found in sections().values())


def test_a_code_is_found_however_it_is_written() -> None:
    assert section("fd112") == section("FD112")
    assert section("FD112").title == "A replica larger than any node"
    assert section("FD301").text.endswith("gloo accepts them.")


def test_an_unknown_code_is_answered_with_the_closest() -> None:
    with pytest.raises(FlowdistError, match="there is no code 'fd1112'") as caught:
        section("fd1112")
    assert caught.value.help == 'did you mean "FD112"?'
