"""One run of each kind: a node is lost and replaced, with and without a worker that has failed before."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.samerun.__main__ import alone, disturbed, faults_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_with_four_ranks_three_and_four_again_ends_equal_to_the_bit(seed: int, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "disturbed").mkdir()
    expected = alone(tmp_path / "alone")
    digest, text, ranks = disturbed(tmp_path / "disturbed", faults_of(seed))
    assert digest == expected, text
    assert 3 in ranks and ranks[-1] == 4
