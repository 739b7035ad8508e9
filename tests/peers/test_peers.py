"""The tests of PyTorch and TorchX hold for flowdist as evidence/peers.md says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.peers.case import Case
from tests.peers.runs import Runs
from tests.peers.table import CASES, markdown, page_and_words

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_real], ids=lambda case: case.id)
def test_case(case: Case, runs: Runs) -> None:
    case.play(runs)


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("case", [case for case in CASES if case.is_real], ids=lambda case: case.id)
def test_case_on_processes(case: Case, runs: Runs) -> None:
    case.play(runs)


def test_the_page_has_all_cases() -> None:
    assert (ROOT / "evidence/peers.md").read_text() == markdown(), "run python -m tests.peers --write evidence/peers.md"


def test_names_of_cases_are_unique() -> None:
    assert len({(case.peer, case.test) for case in CASES}) == len(CASES)


def test_what_does_not_pass_has_its_line_of_the_docs() -> None:
    for case in CASES:
        assert (case.stance == "passes") == (case.line == ""), case.id
        if case.line:
            page, words = page_and_words(case)
            assert words in " ".join((ROOT / page).read_text().split()), f"{case.id}: {words}"
