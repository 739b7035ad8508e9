"""Tests of the determinism check: equal digests under every hash seed, and a planted iteration over a set is found."""

from __future__ import annotations

import pytest

from flowdist.control.placement.chooser import Chooser
from flowdist.control.protocol.ids import NodeName
from tests.proofs.determinism import SCENARIOS, compare, crowd, crowded, main, plan_of


def iterate_over_a_set_in_placement() -> None:
    """Plant a bug: among equally good nodes, take the first that a set yields."""
    take = Chooser.take

    def take_any(self: Chooser, prefer: NodeName | None = None, avoid: object = ()) -> NodeName | None:
        fit = {name for name in self._job.free if self._candidate(name) is not None}
        return take(self, prefer if prefer is not None else next(iter(fit), None))

    Chooser.take = take_any  # type: ignore[method-assign, assignment]


@pytest.mark.slow
def test_crowded_jobs_give_the_same_digests_under_every_hash_seed() -> None:
    assert compare(SCENARIOS, range(1, 4), (1, 2), jobs=2) == []


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_jobs_are_crowded(scenario: str) -> None:
    result = crowded(scenario, 3)
    times = [line.t_ns for line in result.lines[1:]]  # type: ignore[union-attr]
    assert len(crowd().cluster.nodes) == 64
    assert max(times.count(time) for time in {*times}) >= 20  # events at one moment
    if scenario != "ties":
        assert sum(result.hits.values()) >= 10
        assert len(result.job.incidents) >= 2
    assert result.violation is None


def test_seeds_differ_in_their_faults_and_in_the_order_of_simultaneous_events() -> None:
    assert len({str(plan_of("at once", seed)) for seed in range(20)}) == 20
    assert (
        len({crowded("ties", seed).digest for seed in (2, 4, 6, 10)}) == 4
    )  # seed 4 keeps simultaneous events in the order of planning


@pytest.mark.slow
def test_an_iteration_over_a_set_in_placement_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    setup = f"{__name__}:iterate_over_a_set_in_placement"
    status = main(["--only", "ties", "--seeds", "2", "--hash-seeds", "2", "--setup", setup])
    printed = capsys.readouterr().out
    assert status == 3
    assert "| ties | 2 | 2 | 4 | 2 |" in printed
    assert "ties, seed 1: line" in printed and "under hash seed 1: {" in printed  # the first line that differs
    assert "2 seeds differ" in printed


def test_the_table_counts_the_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "at once", "--seeds", "2", "--hash-seeds", "2", "--from", "5"]) == 0
    printed = capsys.readouterr().out
    assert "| at once | 2 | 2 | 4 | 0 |" in printed
    assert "all digests are equal" in printed
