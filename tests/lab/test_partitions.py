"""A few seeds of `python -m tests.lab.partitions`, which plays fifty."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.network import LabUnavailable
from tests.lab.partitions import HOSTS, KINDS, draw, play

pytestmark = [pytest.mark.real, pytest.mark.lab]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 7])
def test_no_two_generations_run_at_once_in_a_seeded_partition(tmp_path: Path, seed: int) -> None:
    try:
        outcome = play(tmp_path, seed)
    except LabUnavailable as error:
        pytest.skip(f"no lab: {error}")
    assert not outcome.wrong, outcome


def test_fifty_seeds_draw_every_kind_of_cut_of_every_host_on_both_sides_of_the_lease() -> None:
    cuts = [cut for seed in range(1, 51) for cut in draw(seed)]
    assert {(cut.host, cut.kind) for cut in cuts} == {(host, kind) for host in HOSTS for kind in KINDS}
    assert {(cut.seconds > 3) + (cut.seconds > 5) for cut in cuts} == {0, 1, 2}
    assert draw(3) == draw(3) != draw(4)
