"""The short form of a long record: faults and incidents are visible, and checkpoints in a row are counted."""

from __future__ import annotations

from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.report.record.trace import shown_lines, trace_lines
from flowdist.sim.result import SimResult
from flowdist.testing import simulate

MOST = 40


def actors(*faults: str) -> SimResult:
    """Return eight actors that save every minute for an hour, beside a learner."""
    t = Topology("rl", nodes=4 * [Node(cpu=4)])
    load = Workload(steps=3600, checkpoint_every="1m")
    learner = t.role("learner", "true", restart=Restart(max_restarts=99), workload=load)
    restart = Restart("replica", max_restarts=99)
    t.role("actor", "true", replicas=8, gang=False, depends_on=[learner.started()], restart=restart, workload=load)
    return simulate(t, *faults)


def test_a_fault_in_the_middle_of_a_long_run_is_shown_with_what_followed() -> None:
    lines = actors("actor/3@30m").lines
    shown = shown_lines(lines, MOST)
    assert len(list(trace_lines(lines))) > 500 and len(shown) <= MOST
    assert any("!! actor/3@30m hits actor/3" in line for line in shown)
    assert any("incident 1: actor/3 failed" in line for line in shown)
    assert any("incident 1: recovered" in line for line in shown)
    assert sum("more checkpoints, the last at" in line for line in shown) >= 2


def test_of_very_long_ones_the_faults_and_incidents_are_kept_and_the_others_counted() -> None:
    lines = actors(*(f"actor/3@{n}m" for n in range(5, 55, 5))).lines
    shown = shown_lines(lines, MOST)
    assert [f"!! actor/3@{n}m hits" in " ".join(shown) for n in range(5, 55, 5)] == [True] * 10
    assert sum("incident 5: " in line for line in shown) == 3, "it opens, has re-formed, and has recovered"
    assert any("of these the faults and incidents: " in line and "--full" in line for line in shown)
    assert shown[0].endswith("node0 joined") and shown[-1].endswith("the job has succeeded")


def test_there_is_an_end_to_faults_too() -> None:
    shown = shown_lines(actors("actor@every=30s").lines, MOST)
    assert any("more faults and incidents" in line for line in shown) and len(shown) <= 2 * MOST + 3


def test_a_world_of_one_has_one_worker() -> None:
    lines = list(trace_lines(actors().lines[:30]))
    assert any(line.endswith("start actor/0@node1 (generation 1, 1 worker)") for line in lines), lines


def test_what_is_short_is_shown_as_it_is() -> None:
    lines = actors("actor/3@1m").lines[:30]
    assert shown_lines(lines, MOST) == list(trace_lines(lines))
