"""Advice on jobs: which change is found, with which seeds, and that it is worth what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import process_time

import msgspec
import pytest

from flowdist.advice.advise import Advice, Question, advise, why_not
from flowdist.advice.alternatives import LEVERS, Change, Lever, changed, changes_of, interval_change, with_interval
from flowdist.advice.intervals import bounds_of
from flowdist.advice.playing import budget_of, faults_per_ns, horizon_ns, leading_role, mode_of, play, work_of
from flowdist.dsl.load import load_topology
from flowdist.dsl.problems.problem import TopologyProblems
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import FaultError
from flowdist.graph import MINUTE, SECOND, RoleGraph, format_duration
from flowdist.graph.units import DAY
from flowdist.sim.experiment.experiment import of_topology
from flowdist.sim.simulation import with_nodes
from tests.choosing import slow

ROOT = Path(__file__).parents[2]
TOPOLOGIES = ROOT / "scenarios/topologies"
WEEK = ("trainer.workload.steps=600000", "trainer.restart.max_restarts=30", "trainer.restart.within=1h")


class Case:
    """Topology file with overrides and rates, as the command line has them."""

    def __init__(self, file: str, *rates: str, sets: Sequence[str] = (), until: int = 0, **params: object) -> None:
        self._file = str(TOPOLOGIES / file) if "/" not in file else str(ROOT / file)
        self._sets, self._params = tuple(sets), {name: str(value) for name, value in params.items()}
        loaded = load_topology(self._file, self._params, self._sets).graph
        self.job = of_topology(loaded, parse_plan(rates=rates))
        self.mode = mode_of(self.job)
        self.budget = budget_of(self.job.graph, self.job.plan, self.mode, until or None)
        end_ns = until or horizon_ns(self.job.graph, self.job.plan, self.budget.faults)
        self.job = self.job._replace(until_ns=end_ns)

    def compile(self, sets: tuple[str, ...], nodes: int | None) -> RoleGraph:
        count = str(nodes) if nodes is not None else None
        return with_nodes(load_topology(self._file, self._params, (*self._sets, *sets), count).graph)

    def question(self, *levers: Lever, seeds: int | None = None) -> Question:
        measuring, choosing = seeds or self.budget.measuring, seeds or self.budget.choosing
        first, second = range(1, measuring + 1), range(measuring + 1, measuring + 1 + choosing)
        return Question(self.job, self.mode, self.compile, second, first, levers or LEVERS)

    def advise(self, *levers: Lever, seeds: int | None = None) -> Advice:
        return advise(self.question(*levers, seeds=seeds))


def week(*rates: str, sets: Sequence[str] = (), **params: object) -> Case:
    """A week of a gang of four, which fails only if it is told so."""
    return Case("gang.py", *rates, sets=(*WEEK, *sets), until=DAY, **params)


def changes(advice: Advice) -> list[tuple[str, ...]]:
    return [change.sets for one in advice.sure for change in one.changes]


def test_an_interval_that_is_far_too_long_is_shortened_and_the_gain_is_sure() -> None:
    case = week("node-kill=5/node-day/10m", sets=["trainer.workload.checkpoint_every=2h"])
    advice = case.advise("interval", seeds=6)
    (one,) = advice.sure
    (change,) = one.changes
    assert advice.mode == "fast" and advice.role == "trainer" and change.today == "2h"
    assert one.gain.goodput.mean > 0.1 and one.gain.better == 6 and advice.best_ns is not None
    assert advice.daly_ns is not None and 0.4 < advice.best_ns / advice.daly_ns < 2.5
    assert change.sets == (f"trainer.workload.checkpoint_every={format_duration(advice.best_ns)}",)
    assert case.compile(change.sets, None).roles[0].workload.checkpoint_every_ns == advice.best_ns


@pytest.mark.slow
def test_what_is_best_already_is_left_and_nothing_is_sure() -> None:
    first = week("node-kill=5/node-day/10m").advise("interval", seeds=6)
    best = f"trainer.workload.checkpoint_every={format_duration(first.best_ns or 0)}"
    again = week("node-kill=5/node-day/10m", sets=[best]).advise("interval", seeds=6)
    assert again.sure == [] and again.together is None
    assert all(one.gain.verdict == "unsure" for one in again.measured)


def test_other_seeds_measure_than_choose() -> None:
    question = week("node-kill=5/node-day/10m").question("interval", "minimum", seeds=3)
    one, two = advise(question), advise(question._replace(choosing=(11, 12, 13)))
    assert one.goodput == two.goodput, "both measure with the same seeds"
    assert one.points != two.points, "they choose with others"
    three = advise(question._replace(measuring=(21, 22, 23)))
    assert (one.points, one.tried) == (three.points, three.tried) and one.goodput != three.goodput


@pytest.mark.slow
def test_the_same_question_has_the_same_answer() -> None:
    case = week("node-kill=5/node-day/10m")
    assert case.advise(seeds=2) == case.advise(seeds=2)


def test_an_alternative_that_is_equal_to_today_gains_exactly_nothing() -> None:
    case = week("node-kill=5/node-day/10m")
    advice = case.advise("scope", seeds=3)  # with one role, the scopes role and job restart the same
    (tried,) = advice.tried
    assert tried.change.sets == ("trainer.restart.scope=job",)
    assert tried.gain is not None and tried.gain.goodput == (0.0, 0.0) and tried.gain.hours == (0.0, 0.0)
    assert advice.measured == []


def test_a_job_that_fails_for_lack_of_patience_is_given_some() -> None:
    case = Case("gang.py", "node-kill=12/node-day/20m", sets=WEEK, until=DAY, replicas="4", pending_timeout="10m")
    advice = case.advise("patience", seeds=8)
    assert advice.failed[0] == 8 and "below its minimum" in advice.failed[1]
    (one,) = advice.sure
    assert one.gain.verdict == "ends" and one.gain.still_failed == 0
    assert one.changes[0].sets in (("trainer.pending_timeout=1h",), ("trainer.pending_timeout=1d",))


def test_more_restarts_are_tried_for_a_job_that_uses_up_its_budget() -> None:
    case = Case("gang.py", "trainer-kill=2/replica-hour", sets=["trainer.workload.steps=20000"])
    advice = case.advise("budget", seeds=8)
    assert advice.failed[0] == 8
    assert [change.lever for one in advice.measured for change in one.changes] == ["budget"]


def test_the_role_whose_budget_is_used_up_gets_more_restarts() -> None:
    case = Case("ps.py", "ps-kill=60/replica-hour")
    failed = play(case.job, case.mode, [1, 2])
    assert all("role ps has used up" in run.reason for run in failed)
    assert {change.what for change in changes_of(case.job, failed) if change.lever == "budget"} == {"ps may restart"}


def test_spare_nodes_that_the_job_cannot_use_are_given_back() -> None:
    """Four runs have about six failures, too few to be sure of anything."""
    case = week("node-kill=0.2/node-day/10m", nodes=8)
    few, advice = case.advise("spares", seeds=4), case.advise("spares", seeds=16)
    assert few.sure == [] and few.goodput.half is None and "no 95 % intervals: " in few.notes[-1]
    (one,) = advice.sure
    assert one.changes[0].nodes is not None and 4 <= one.changes[0].nodes < 8
    assert one.gain.share > 0.1 and one.changes[0].words == ["--nodes", str(one.changes[0].nodes)]


def test_a_spare_node_that_costs_more_than_it_saves_is_shown_apart() -> None:
    advice = week("node-kill=1/node-day/10m", replicas="4", pending_timeout="1d").advise("spares", seeds=6)
    assert advice.sure == []
    (one,) = advice.measured
    assert one.changes[0].proposed in ("5", "6") and one.gain.verdict == "buys" and one.gain.costs


def test_a_lease_is_tried_only_where_nodes_fall_silent() -> None:
    silent, killed = week("node-lost=5/node-day/10m"), week("node-kill=5/node-day/10m")
    levers = {change.lever for change in changes_of(silent.job, [])}
    assert {"lease", "heartbeat"} <= levers
    assert not {"lease", "heartbeat"} & {change.lever for change in changes_of(killed.job, [])}


def test_a_shorter_lease_comes_with_a_warning_about_nodes_that_are_only_slow() -> None:
    case = week("node-lost=4/node-day/1h", sets=["lease=40m"], pending_timeout="1d")
    advice = case.advise("lease", seeds=20)
    assert [change.lever for one in advice.sure for change in one.changes] == ["lease"]
    assert any("silent only for a moment" in note for note in advice.notes)


@pytest.mark.slow
def test_sure_changes_are_simulated_together_as_gains_do_not_add_up() -> None:
    sets = ["trainer.workload.checkpoint_every=2h"]
    advice = week("node-kill=5/node-day/10m", sets=sets, nodes=8).advise("interval", "spares", seeds=8)
    assert advice.together is not None and len(advice.together.changes) == len(advice.sure) == 2
    parts = [one.gain.share for one in advice.sure]
    assert max(parts) < advice.together.gain.share < sum(parts)


@pytest.mark.slow
def test_of_several_changes_that_keep_a_job_from_failing_one_is_enough() -> None:
    sets = ["trainer.workload.checkpoint_every=2h"]
    case = Case("gang.py", "node-kill=6/node-day/30m", sets=(*WEEK, *sets), until=DAY, replicas="3:4")
    advice = case.advise("interval", "minimum", "patience", seeds=16)
    ends = [one for one in advice.sure if one.gain.verdict == "ends"]
    assert len(ends) > 1 and advice.together is not None
    assert [one for one in advice.joined if one in ends] == ends[:1]
    assert advice.together.gain.still_failed == 0 and advice.together.gain.share > 0.05


def test_a_change_with_which_the_topology_has_errors_is_not_played() -> None:
    case = week("node-lost=5/node-day/10m")
    with pytest.raises(TopologyProblems) as caught:
        changed(case.job, [Change("lease", "lease", "4s", "100ms", ("lease=100ms",))], case.compile)
    (problem,) = caught.value.problems
    assert why_not(caught.value) == f"{problem.code}: {problem.message}" and "lease" in problem.message
    longer = changed(case.job, [Change("lease", "lease", "4s", "8s", ("lease=8s",))], case.compile)
    assert longer.graph.options.lease_ns == 8 * SECOND


def test_minima_fit_the_mesh() -> None:
    job = Case("mesh.py", "node-kill=2/node-day/10m").job
    found = [change.sets[0] for change in changes_of(job, []) if change.lever == "minimum"]
    assert found == ["trainer.replicas=6", "trainer.replicas=4:6"]


def test_a_job_that_macro_mode_refuses_is_played_in_protocol_mode() -> None:
    case = Case("core.py", "ps-kill=20/replica-day", sets=["trainer.restart.max_restarts=50"], until=20 * MINUTE)
    assert case.mode == "exact"
    advice = case.advise("minimum", seeds=2)
    assert advice.mode == "exact" and 0 < advice.goodput.mean < 1 and advice.role in ("ps", "trainer")


def test_a_fault_of_something_that_the_job_does_not_have_is_refused() -> None:
    with pytest.raises(FaultError, match="there is no 'nod'"):
        Case("gang.py", "nod-kill=5/nod-day/10m")


def test_a_job_without_a_primary_task_is_refused() -> None:
    graph = load_topology(str(TOPOLOGIES / "gang.py")).graph
    roles = tuple(msgspec.structs.replace(role, primary=False) for role in graph.roles)
    with pytest.raises(FlowdistError, match="no primary task"):
        leading_role(msgspec.structs.replace(graph, roles=roles))


def test_the_work_of_a_world_whose_steps_depend_on_its_size_is_counted_in_steps() -> None:
    sets = ["trainer.workload.scaling=0.5"]
    sized = week("node-kill=20/node-day/1h", sets=sets, replicas="1:4")
    (run,) = play(sized.job, "fast", [1])
    work = work_of(run, leading_role(sized.job.graph))
    assert work == int(work) and 0 < work <= 600_000
    assert not any("does not say how long" in note for note in sized.advise("minimum", seeds=2).notes)


def test_runs_are_as_long_and_as_many_as_their_faults_demand() -> None:
    busy, calm = week("node-kill=50/node-day/1m").job, week("node-kill=0.01/node-day/1m").job
    assert faults_per_ns(busy.graph, busy.plan) * DAY == pytest.approx(200)
    assert horizon_ns(busy.graph, busy.plan, 200) == DAY
    ideal_ns = 5 * SECOND + 600_000 * SECOND + 10_000 * SECOND
    assert horizon_ns(calm.graph, calm.plan, 200) == pytest.approx(4 * ideal_ns, abs=DAY)
    assert budget_of(busy.graph, busy.plan, "fast") == (200, 10, 10)
    assert budget_of(calm.graph, calm.plan, "fast").measuring == 200
    assert budget_of(busy.graph, busy.plan, "exact").measuring < 10


@pytest.mark.parametrize(
    ("file", "rates", "params"),
    slow(
        [
            ("gang.py", ["node-kill=200/node-day/2m"], {}),
            ("examples/char_gpt/topology.py", ["trainer-kill=30/replica-hour"], {}),
            (
                "hundred_thousand.py",
                ["node-kill=6.5e-3/node-day/4h"],
                {"nodes": 1250, "least": 1200, "spares": 10, "checkpoint_every": "2h"},
            ),
        ]
    ),
)
def test_the_interval_is_within_half_a_point_of_the_best_of_a_fine_sweep(
    file: str, rates: list[str], params: dict[str, object]
) -> None:
    case = Case(file, *rates, **params)
    question, began_s = case.question(), process_time()
    advice = advise(question)
    assert process_time() - began_s < 30  # of the CPU: other programs do not count
    assert advice.best_ns is not None
    role, bounds = leading_role(case.job.graph), bounds_of(leading_role(case.job.graph), case.job.until_ns)

    def goodput(interval_ns: int) -> float:
        job = case.job._replace(graph=with_interval(case.job.graph, role, interval_ns))
        runs = play(job, case.mode, question.measuring)
        return sum(run.goodput for run in runs) / len(runs)

    fine = {bounds.put(advice.best_ns * 2 ** (k / 8)) for k in range(-16, 17)}
    best = max(goodput(interval_ns) for interval_ns in fine)
    assert goodput(advice.best_ns) > best - 0.005
    assert advice.best_ns >= role.longest_step_ns


def test_the_change_of_an_interval_has_the_text_of_both() -> None:
    graph = week("node-kill=5/node-day/10m").job.graph
    change = interval_change(graph, leading_role(graph), 90 * SECOND)
    assert (change.today, change.proposed) == ("1m", "1m30s")
    assert change.words == ["--set", "trainer.workload.checkpoint_every=1m30s"]


def test_roles_of_a_joint_world_save_together() -> None:
    case = Case("core.py", "trainer-kill=1/replica-day", until=20 * MINUTE)
    graph = case.job.graph
    change = interval_change(graph, leading_role(graph), 90 * SECOND)
    assert change.what == "ps and trainer save every"
    compiled, replaced = case.compile(change.sets, None), with_interval(graph, leading_role(graph), 90 * SECOND)
    assert compiled == replaced != graph


@pytest.mark.parametrize(("lever", "today"), [("snapshots", "every=4"), ("copies", "copies=1")])
def test_the_steps_between_snapshots_and_the_number_of_copies_are_advised(lever: Lever, today: str) -> None:
    """With 4 GB a copy takes as long as a step; with one copy, a lost node costs all work since the checkpoint."""
    load = ("steps=20000", "checkpoint_every=10m")
    sets = (f"trainer.snapshots.{today}", "trainer.snapshots.size=4GB", *(f"trainer.workload.{each}" for each in load))
    more = ("trainer.restart.max_restarts=40", "trainer.restart.within=1d")
    advice = Case("sharded.py", "node-kill=10/node-day/2m", sets=(*sets, *more), until=90 * MINUTE).advise(
        lever, seeds=2
    )
    (one,) = advice.measured
    (change,) = one.changes
    assert int(change.proposed.split()[0]) > int(change.today.split()[0]) and one.gain.goodput.mean > 0.05
    assert change.words == ["--set", f"trainer.snapshots.{today.partition('=')[0]}={change.proposed.split()[0]}"]


def test_a_job_without_snapshots_is_not_asked_about_them() -> None:
    case = week("node-kill=5/node-day/10m")
    today = play(case.job, case.mode, [1])
    assert {"snapshots", "copies"}.isdisjoint(change.lever for change in changes_of(case.job, today))
