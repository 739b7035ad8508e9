"""The quick rows of the table, and the page of the evidence that has all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.__main__ import played
from tests.chaos.row import Row
from tests.chaos.table import ROWS, markdown, observed_on

PAGE = Path(__file__).parents[2] / "evidence/chaos.md"
QUICK = [row for row in ROWS if row.is_quick]


@pytest.mark.real
@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.name)
def test_quick_row(row: Row) -> None:
    outcome = played(row)
    if outcome.is_kept is None:
        pytest.skip(outcome.observed)
    assert outcome.is_kept, outcome.observed


def test_names_of_rows_are_unique_and_there_are_enough() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names) >= 40


def test_what_was_observed_is_read_back_from_the_page() -> None:
    observed = {row.name: f"exit code {number}: `a | b`" for number, row in enumerate(ROWS)}
    assert observed_on(markdown(observed)) == observed


def test_the_page_has_all_rows_and_what_was_observed() -> None:
    lines = PAGE.read_text().splitlines()
    expected = markdown({}).splitlines()
    assert len(lines) == len(expected), "run `make chaos`"
    for found, wanted in zip(lines, expected, strict=True):
        assert found.startswith(wanted.removesuffix(" |")), "run `make chaos`"
        assert wanted == found or not wanted.startswith("|") or len(found) > len(wanted) + 5, (
            f"nothing observed: {found}"
        )
