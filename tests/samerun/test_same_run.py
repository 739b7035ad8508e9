"""One run of each kind: a node is lost and replaced; a worker or a node is lost with what it has in memory."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.samerun.__main__ import alone, disturbed, faults_of, in_memory

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_with_four_ranks_three_and_four_again_ends_equal_to_the_bit(seed: int, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "disturbed").mkdir()
    end = disturbed(tmp_path / "disturbed", faults_of(seed))
    assert end.digest == alone(tmp_path / "alone"), end.text
    assert end.is_complete, end


@pytest.mark.slow
def test_fsdp2_ends_equal_to_the_bit_with_its_state_in_memory_alone(tmp_path: Path) -> None:
    ends = []
    for name, faults in (("none", []), ("rank", ["trainer/1@step=trainer,20"]), ("node", ["node0@step=trainer,20"])):
        (tmp_path / name).mkdir()
        ends.append(in_memory(tmp_path / name, faults))
        assert ends[-1].digest == ends[0].digest != "" and ends[-1].is_complete == bool(faults), ends[-1]
