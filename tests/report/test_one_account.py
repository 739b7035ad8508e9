"""The lost work of a simulation is one figure: `simulate` prints it, and the page, `replay` and `diff` of its trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist.cli.shared.common import load
from flowdist.cli.shared.options import TopologyOptions
from flowdist.cli.shared.simulated import simulated_summary
from flowdist.cli.simulate.simulate import _from_scenario
from flowdist.faults.files import plan_of_scenario
from flowdist.faults.scenario import load_scenario
from flowdist.record.journal import AccountLine, Header, Line, decode_line, encode_line
from flowdist.record.reader import read_whole_lines
from flowdist.report.record.page import page_data
from flowdist.report.record.spending import goodput_line, time_of_run
from flowdist.report.record.timeline import Timeline, timeline_of
from flowdist.sim.experiment import outcome
from flowdist.sim.experiment.experiment import of_topology
from flowdist.sim.experiment.play import play
from flowdist.sim.result import SimResult
from tests.report.records import simulated

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").glob("*.toml"))


def played(path: Path) -> SimResult:
    scenario = load_scenario(path)
    graph = load(_from_scenario(path, scenario, TopologyOptions(None, (), (), None, as_json=True))).graph
    return play(of_topology(graph, plan_of_scenario(path), seed=scenario.seed)).exact


def record_of(result: SimResult) -> tuple[Header, list[Line]]:
    """Return the trace as its readers get it: written and read again."""
    header, *lines = read_whole_lines(b"".join(map(encode_line, result.lines)))[0]
    assert isinstance(header, Header)
    return header, lines


def lost_of(timeline: Timeline, *, is_unsaved: bool) -> int:
    """Return the lost or unsaved work that the page draws, in ns: that of each generation once."""
    drawn = {
        (one.world, one.generation): one.lost_to_ns - one.lost_from_ns
        for one in timeline.attempts
        if one.lost_from_ns is not None and one.lost_to_ns is not None and one.is_unsaved == is_unsaved
    }
    return sum(drawn.values())


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_page_of_each_scenario_shows_the_lost_work_that_simulate_prints(path: Path) -> None:
    """It once showed none of the 161 s of R10: nothing in the trace says how far a world is before its checkpoint."""
    result = played(path)
    summary, (header, lines) = simulated_summary(result), record_of(result)
    printed = {name: role["lost_work_s"] for name, role in summary["roles"].items() if role.get("lost_work_s")}
    timeline = timeline_of(header, lines)
    page = page_data(timeline)
    assert {name: us / 1e6 for name, us in page["lost"]} == pytest.approx(printed)
    assert page["goodput"] == goodput_line(summary)
    shown = page["curves"]["goodput"][-1][1]
    assert summary["goodput"] is None or page["goodput"].startswith(f"goodput {shown:.1f} %")
    by_world = sum(model.lost_ns for model in result.models.values())  # joint roles lose it together
    assert timeline.lost_ns == lost_of(timeline, is_unsaved=False) == by_world
    unsaved_s = sum(role.get("unsaved_work_s", 0) for role in summary["roles"].values())
    assert timeline.unsaved_ns == lost_of(timeline, is_unsaved=True) == round(1e9 * unsaved_s)
    assert timeline.end_ns == result.now
    replayed = timeline.curves.sheet
    assert time_of_run(header.graph, replayed)["time_ns"] == summary["time_ns"] and replayed.lasted() == result.now
    told = outcome.of_record(header, lines)
    assert {name: ns for name, ns in told.lost_ns.items() if ns} == {n: round(1e9 * s) for n, s in printed.items()}


def test_a_trace_ends_with_the_accounts_and_one_that_is_cut_off_is_read_as_a_journal_is() -> None:
    result = simulated("gang.py", "node2@3m/2m")
    header, lines = record_of(result)
    assert isinstance(lines[-1], AccountLine) and decode_line(encode_line(lines[-1])) == lines[-1]
    assert [line for line in lines if isinstance(line, AccountLine)] == lines[-1:]
    cut = timeline_of(header, lines[:-1])
    assert cut.curves.sheet.told is None and cut.lost_ns > 0
