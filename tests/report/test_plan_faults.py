"""Timeouts that do not go with a plan of faults, compared with what the simulator shows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from flowdist.dsl.load import Loaded, compile_loaded, load_topology
from flowdist.dsl.problems.problem import Problem
from flowdist.dsl.topology import Topology
from flowdist.dsl.words import Node, Restart, Workload
from flowdist.faults.files import parse_plan, read_plan
from flowdist.graph import MS, format_duration, parse_duration
from flowdist.report.static.plan_faults import problems_of_plan
from flowdist.sim.simulation import Simulation
from tests.choosing import examples

UNTIL = parse_duration("1h")


def compiled(
    pending: str = "1m", checkpoint: str = "20s", step: str = "1s", grace: str = "10s", replicas: str = "4"
) -> Loaded:
    t = Topology("job", nodes=4 * [Node(cpu=1)])
    t.role(
        "trainer",
        "true",
        replicas=replicas,
        pending_timeout=pending,
        grace=grace,
        restart=Restart("role", max_restarts=3),
        workload=Workload(steps=4000, step_time=step, checkpoint_time=checkpoint, checkpoint_every="10m"),
    )
    return compile_loaded(t)


def found(loaded: Loaded, *faults: str, **more: list[str]) -> list[Problem]:
    return problems_of_plan(parse_plan(faults, **more), loaded.graph, loaded.arguments)


def test_a_role_does_not_wait_for_as_long_as_the_node_is_away() -> None:
    (problem,) = found(compiled(), "node1@2m/5m")
    assert (problem.code, problem.severity, problem.place.file) == ("FD331", "warning", "<command line>")
    assert problem.message == (
        "role 'trainer': pending_timeout=1m is over before node1 comes back after 5m (node1@2m/5m): without it there "
        "is no room for the minimum of 4, and the job fails"
    )
    assert problem.help.startswith('write pending_timeout="7m" or more')
    ((text, place),) = problem.related
    assert text == "pending_timeout=1m"
    assert place is not None
    assert place.file == __file__
    assert not found(compiled(pending="7m"), "node1@2m/5m")


@pytest.mark.parametrize(
    "faults",
    [
        ("node1@2m/50s",),  # back in time
        ("node1@2m",),  # never back: `stranding` tells that
        ("trainer/0@2m:kill",),
        ("node1@2m:drain",),
    ],
)
def test_other_faults_are_no_problem_of_pending_timeout(faults: tuple[str, ...]) -> None:
    assert not found(compiled(), *faults)


def test_neither_room_elsewhere_nor_a_node_that_joins_leaves_a_problem() -> None:
    assert not found(compiled(replicas="3"), "node1@2m/5m")
    assert not found(compiled(replicas="2:4"), "node1@2m/5m")
    assert not found(compiled(), "node1@2m/5m", adds=["node9@3m"])


def test_a_notice_has_to_be_long_enough_to_stop_and_to_save() -> None:
    (problem,) = found(compiled(replicas="3"), "node1@2m:preempt=30s/5m")
    assert (problem.code, problem.severity) == ("FD330", "warning")
    assert problem.message == (
        "role 'trainer': a notice of 30s (node1@2m:preempt=30s/5m) is too short to save: less grace=10s, for workers "
        "to stop, it leaves 20s, but up to 21s pass until the step is done and its checkpoint is complete (1s step + "
        "20s checkpoint)"
    )
    assert problem.help == 'give a notice of 39s or more, or write grace="6.7s" or less'
    assert [text for text, _ in problem.related] == ["grace=10s", "checkpoint_time=20s"]
    assert not found(compiled(replicas="3"), "node1@2m:preempt=39s/5m")
    assert not found(compiled(replicas="3", grace="6.7s"), "node1@2m:preempt=30s/5m")


def test_a_notice_that_no_grace_makes_long_enough() -> None:
    (problem,) = found(compiled(replicas="3"), "node1@2m:preempt=5s/5m")
    assert problem.help == "give a notice of 39s or more"
    assert "it leaves 0s" in problem.message


def test_without_a_workload_only_a_notice_that_grace_uses_up_is_too_short() -> None:
    t = Topology("job", nodes=4 * [Node(cpu=1)])
    t.role("trainer", "true", replicas=3, restart=Restart("role", max_restarts=3))
    assert not found(compile_loaded(t), "node1@2m:preempt=10.5s/5m")  # how long a step takes is a guess
    (problem,) = found(compile_loaded(t), "node1@2m:preempt=10s/5m")
    assert problem.code == "FD330" and "it leaves 0s" in problem.message


def test_rates_have_notices_and_returns_as_well() -> None:
    codes = [problem.code for problem in found(compiled(), rates=["node-preempt=1/node-day:20s/5m"])]
    assert codes == ["FD330", "FD331"]


def test_each_role_has_one_problem_of_a_kind() -> None:
    assert len(found(compiled(), "node1@2m/5m", "node2@20m/6m")) == 1


def test_a_problem_of_a_file_of_faults_is_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "faults.txt"
    file.write_text("# two\nnode1@2m/5m\n")
    loaded = compiled()
    (problem,) = problems_of_plan(read_plan(file), loaded.graph, loaded.arguments)
    assert (problem.place.file, problem.place.line) == (str(file), 2)
    assert "  | node1@2m/5m\n" in problem.format()


def test_a_wait_that_is_too_short_is_one_that_fails_the_job() -> None:
    shown = {True: 0, False: 0}
    for number in range(examples(20, 200)):
        random = Random(number)
        pending, away = (round(random.uniform(10, 90) * 1000) * MS for _ in range(2))
        kind = random.choice(["", ":lost", ":leave", ":pause", ":preempt=30s"])
        loaded = compiled(pending=format_duration(pending), checkpoint="5s")
        fault = f"node1@2m{kind}/{away // MS}ms"
        waits = (
            away - (parse_duration("5s") if kind in (":lost", ":pause") else 0) + parse_duration("24s") * ("=" in kind)
        )
        blur = {":lost": 600, ":pause": 600, ":preempt=30s": 6_200}.get(kind, 300) * MS
        if abs(waits - pending) <= blur:  # a heartbeat before the silence; the step in progress; the time to stop
            continue
        result = Simulation(loaded.graph, parse_plan([fault]), checks="paced", fast_forward=True).run(UNTIL)
        problems = [problem for problem in found(loaded, fault) if problem.code == "FD331"]
        assert bool(problems) == (result.job.outcome == "failed"), (number, fault, format_duration(pending))
        shown[bool(problems)] += 1
    assert min(shown.values()) > 3


def test_a_notice_that_is_too_short_is_one_that_loses_work() -> None:
    shown = {True: 0, False: 0}
    for number in range(examples(20, 200)):
        random = Random(number)
        step, checkpoint, grace, notice = (round(random.uniform(1, most) * 1000) * MS for most in (9, 30, 20, 60))
        texts = {"step": step, "checkpoint": checkpoint, "grace": grace}
        loaded = compiled(replicas="3", **{name: format_duration(ns) for name, ns in texts.items()})
        if abs(notice - grace - step - checkpoint) <= 20 * MS:  # what messages take
            continue
        fault = f"node1@step=trainer,2:preempt={notice // MS}ms"  # just after a step, the worst moment
        result = Simulation(loaded.graph, parse_plan([fault]), checks="paced", fast_forward=True).run(UNTIL // 4)
        loses = any(model.lost_steps for model in result.models.values())
        assert bool(found(loaded, fault)) == loses, (number, loaded.graph)
        shown[loses] += 1
    assert min(shown.values()) > 3


def test_the_bundled_topologies_have_no_finding() -> None:
    root = Path(__file__).parents[2]
    for file in [*root.glob("scenarios/topologies/*.py"), *root.glob("examples/*/topology.py")]:
        codes = [problem.code for problem in load_topology(str(file)).warnings]
        only_simulated = ["FD337"] if file.stem == "hundred_thousand" else []  # more nodes than a run has
        assert [code for code in codes if code >= "FD327" or code == "FD304"] == only_simulated, file
