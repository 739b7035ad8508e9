"""The rules about timeouts say what the simulator shows: for random values, and with the value that they advise."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from flowdist.control.protocol.events import ReplicaExited
from flowdist.dsl.check import timeouts
from flowdist.dsl.check.timeouts import Finding, find
from flowdist.faults.files import parse_plan
from flowdist.graph import MINUTE, MS, SECOND, JobOptions, RestartPolicy, RoleGraph, RoleSpec
from flowdist.graph.role_graph import Readiness, WorkloadSpec
from flowdist.record.journal import Record
from flowdist.sim.result import SimResult
from flowdist.sim.simulation import Simulation
from tests.choosing import examples
from tests.cli import excerpts
from tests.cli.excerpts import Scene

POLICY = RestartPolicy("role", max_restarts=3)
FIELDS = {"restore_time": "restore_ns", "step_time": "step_ns", "checkpoint_time": "checkpoint_ns"}


def play(scene: Scene) -> SimResult:
    simulation = Simulation(
        scene.graph, parse_plan(scene.faults), checks="paced", fast_forward=True, play_heartbeats=scene.beats
    )
    result = simulation.run(scene.until_ns)
    assert result.violation is None
    assert scene.faults[:1] != (result.unfired[0].spec,) if result.unfired else True, "the fault never hits"
    return result


def job(options: JobOptions | None = None, **fields: Any) -> tuple[RoleGraph, RoleSpec]:
    """Return a job with one role, and the role; its workload is never the default, which no rule judges."""
    load = fields.pop("workload", {})
    spec = RoleSpec(
        "trainer",
        ("true",),
        min_replicas=2,
        max_replicas=2,
        workload=WorkloadSpec(**{"steps": 601, **load}),
        **{"restart": POLICY, **fields},
    )
    return RoleGraph("job", (spec,), options=options or JobOptions()), spec


def advised(graph: RoleGraph, spec: RoleSpec, found: Finding) -> tuple[RoleGraph, RoleSpec]:
    """Return the job with the value that the finding advises."""
    name, ns = found.advised
    *outer, last = name.split(".")
    field = FIELDS.get(last, f"{last}_ns")
    if not found.role:
        return replace(graph, options=replace(graph.options, **{field: ns})), spec
    if outer:
        spec = replace(spec, **{outer[0]: replace(getattr(spec, outer[0]), **{field: ns})})
    else:
        spec = replace(spec, **{field: ns})
    return replace(graph, roles=(spec,)), spec


def seconds(random: Random, low: float, high: float) -> int:
    return round(random.uniform(low, high) * 1000) * MS


class Case:
    """One rule, the situation that it is about, and what shows in the simulation that it is right.

    Args:
        code: Code of its finding.
        draw: Draws a job.
        scene: Makes the scene of a job, whether or not the rule finds anything.
        shows: Returns whether the result has what the finding says.
        border: Returns how far (ns) the values are from where the verdict changes.
        blur: So near (ns) to the border both verdicts are right; the reason stands beside the case.
    """

    def __init__(
        self,
        code: str,
        draw: Callable[[Random], tuple[RoleGraph, RoleSpec]],
        scene: Callable[[RoleGraph, RoleSpec], Scene],
        shows: Callable[[SimResult], bool],
        border: Callable[[RoleGraph, RoleSpec], int],
        blur: int,
    ) -> None:
        self.code, self.draw, self.scene, self.shows, self.border, self.blur = code, draw, scene, shows, border, blur

    def found(self, graph: RoleGraph) -> Finding | None:
        return next((found for found in find(graph) if found.code == self.code), None)


def has_incident(kind: str | None = None) -> Callable[[SimResult], bool]:
    return lambda result: any(kind in (None, incident.kind) for incident in result.job.incidents)


def loses_work(result: SimResult) -> bool:
    return any(model.lost_steps for model in result.models.values())


def peers_end_first(result: SimResult) -> bool:
    """Return whether a peer ended by its collective timeout before the first incident was opened, or as its cause."""
    ends = [
        line.t_ns
        for line in result.lines
        if isinstance(line, Record) and isinstance(line.event, ReplicaExited) and "timed out" in line.event.detail
    ]
    return bool(ends) and ends[0] <= result.job.incidents[0].opened_ns


def goes_on(result: SimResult) -> bool:
    return result.job.outcome is None


def never_waits(result: SimResult) -> bool:
    return len(result.job.incidents) > 2 and not any(incident.backoff_ns for incident in result.job.incidents)


def draw_hang(random: Random) -> tuple[RoleGraph, RoleSpec]:
    load = {"collective": random.choice(["fail", "hang"]), "collective_timeout_ns": seconds(random, 10, 100)}
    return job(hang_after_ns=seconds(random, 5, 100), workload=load)


def hang(graph: RoleGraph, spec: RoleSpec) -> Scene:
    ends = spec.workload.group_timeout_ns or 0
    return excerpts.one_hangs(graph, spec, (spec.hang_after_ns or 0) + graph.options.cause_window_ns + ends)


def draw_step(random: Random) -> tuple[RoleGraph, RoleSpec]:
    saves = False  # with a checkpoint inside a long step, fast-forward dates the step before it too late
    load = {"startup_ns": 0, "step_ns": seconds(random, 1, 30), "checkpoint_ns": seconds(random, 0, 30) * saves}
    blocks = seconds(random, 0, 1) if random.random() < 0.3 else None
    return job(hang_after_ns=seconds(random, 1, 60), workload=load | {"checkpoint_blocks_ns": blocks})


def steps(graph: RoleGraph, spec: RoleSpec) -> Scene:
    """Return a scene of some steps and two checkpoints; a step may begin just before each."""
    load = spec.workload
    until_ns = 3 * (load.cycle_ns + load.step_ns) + (spec.hang_after_ns or 0)
    return excerpts.nothing_fails(graph, spec, until_ns, "hang_after_ns")


def gap_ns(spec: RoleSpec) -> int:
    """Return the longest time between two steps that a scene of some steps shows."""
    load = spec.workload
    return load.step_ns + load.blocking_ns


def draw_start(random: Random) -> tuple[RoleGraph, RoleSpec]:
    load = {name: seconds(random, 0, 20) for name in ("startup_ns", "warmup_ns", "restore_ns")}
    load |= {"step_ns": seconds(random, 0.1, 5), "checkpoint_every_ns": 30 * SECOND}
    return job(start_timeout_ns=seconds(random, 1, 60), workload=load)


def start_border(graph: RoleGraph, spec: RoleSpec, restore: int) -> int:
    limit, first = spec.start_timeout_ns or 0, timeouts.begins_ns(spec) + restore
    return limit - min(first, first + spec.workload.step_ns - graph.options.cause_window_ns)


def draw_ready(random: Random) -> tuple[RoleGraph, RoleSpec]:
    load = {"startup_ns": seconds(random, 1, 20), "restore_ns": seconds(random, 0, 20)}
    limit = seconds(random, 1, 25)
    return job(ready=Readiness("call"), ready_timeout_ns=limit, workload=load | {"checkpoint_every_ns": 30 * SECOND})


def draw_drain(random: Random) -> tuple[RoleGraph, RoleSpec]:
    load = {"step_ns": seconds(random, 0.5, 9), "checkpoint_ns": seconds(random, 0, 30)}
    return job(drain_ns=seconds(random, 0, 50), workload=load)  # a checkpoint a minute: none before the drain


def draw_budget(random: Random) -> tuple[RoleGraph, RoleSpec]:
    policy = RestartPolicy(
        "role",
        max_restarts=random.randint(1, 4),
        within_ns=seconds(random, 1, 120),
        backoff_ns=seconds(random, 0, 9),
        backoff_max_ns=seconds(random, 9, 30),
        backoff_reset_ns=seconds(random, 1, 60),
    )
    return job(restart=policy, workload={"startup_ns": seconds(random, 0.5, 30)})


def budget(graph: RoleGraph, spec: RoleSpec) -> Scene:
    assert spec.restart is not None
    return excerpts.crash_loop(graph, spec, spec.restart, timeouts.begins_ns(spec) + MS)


def budget_border(graph: RoleGraph, spec: RoleSpec) -> int:
    policy, up = spec.restart, timeouts.begins_ns(spec)
    assert policy is not None
    assert policy.within_ns is not None
    waits = timeouts.backoff_ns(policy) if up < policy.backoff_reset_ns else 0
    return policy.within_ns - waits - policy.max_restarts * up


def draw_crashes(random: Random) -> tuple[RoleGraph, RoleSpec]:
    graph, spec = draw_budget(random)
    assert spec.restart is not None
    policy = replace(spec.restart, within_ns=seconds(random, 1, 40))
    spec = replace(spec, restart=policy, workload=WorkloadSpec())  # it says nothing about the start-up
    return replace(graph, roles=(spec,)), spec


def crashes(graph: RoleGraph, spec: RoleSpec) -> Scene:
    assert spec.restart is not None
    return excerpts.crash_loop(graph, spec, replace(spec.restart, backoff_reset_ns=10 * MINUTE), MS)


def crashes_border(graph: RoleGraph, spec: RoleSpec) -> int:
    assert spec.restart is not None
    return (spec.restart.within_ns or 0) - timeouts.backoff_ns(spec.restart)


def draw_backoff(random: Random) -> tuple[RoleGraph, RoleSpec]:
    policy = RestartPolicy("role", max_restarts=5, backoff_ns=2 * SECOND, backoff_reset_ns=seconds(random, 1, 40))
    return job(restart=policy, workload={"startup_ns": seconds(random, 1, 40)})


def draw_lease(random: Random) -> tuple[RoleGraph, RoleSpec]:
    return job(JobOptions(heartbeat_ns=seconds(random, 0.2, 2), lease_ns=seconds(random, 1.1, 5)))


def beats_border(options: JobOptions, beats: int) -> int:
    return options.lease_ns - options.lease_margin_ns - beats * options.heartbeat_ns


CASES = [
    # A peer ends some milliseconds after its timeout, and the last step is reported some milliseconds before a hang.
    Case(
        "FD327",
        draw_hang,
        hang,
        peers_end_first,
        lambda graph, spec: (spec.hang_after_ns or 0) + 2 * SECOND - (spec.workload.group_timeout_ns or 0),
        20 * MS,
    ),
    # Whether a worker that goes on within `cause_window` after the limit is spared depends on when its agent looks.
    Case(
        "FD304",
        draw_step,
        steps,
        has_incident("hang"),
        lambda graph, spec: (spec.hang_after_ns or 0) - gap_ns(spec) + SECOND,
        SECOND + 20 * MS,
    ),
    # Agents look, and controllers judge, milliseconds after a limit.
    Case(
        "FD180",
        draw_start,
        lambda graph, spec: excerpts.nothing_fails(
            graph,
            spec,
            timeouts.begins_ns(spec) + spec.workload.step_ns + (spec.start_timeout_ns or 0),
            "start_timeout_ns",
        ),
        has_incident("hang"),
        lambda graph, spec: start_border(graph, spec, 0),
        20 * MS,
    ),
    Case(
        "FD181",
        draw_ready,
        lambda graph, spec: excerpts.nothing_fails(
            graph, spec, spec.workload.startup_ns + spec.ready_timeout_ns, "ready"
        ),
        has_incident("unready"),
        lambda graph, spec: spec.ready_timeout_ns - spec.workload.startup_ns,
        20 * MS,
    ),
    Case(
        "FD329",
        draw_drain,
        lambda graph, spec: excerpts.leaves_node(graph, spec, "drain", spec.drain_ns + timeouts.leave_ns(spec)),
        loses_work,
        lambda graph, spec: spec.drain_ns - timeouts.leave_ns(spec),
        20 * MS,
    ),
    # A restart takes some milliseconds, and each of them adds to the time that the budget sees.
    Case("FD332", draw_budget, budget, goes_on, budget_border, 200 * MS),
    Case("FD124", draw_crashes, crashes, goes_on, crashes_border, 200 * MS),
    Case(
        "FD335",
        draw_backoff,
        budget,
        never_waits,
        lambda graph, spec: timeouts.begins_ns(spec) - (spec.restart or POLICY).backoff_reset_ns,
        20 * MS,
    ),
    Case(
        "FD333",
        draw_lease,
        excerpts.beat_late,
        has_incident(),
        lambda graph, spec: beats_border(graph.options, 2),
        5 * MS,
    ),
    Case(
        "FD156",
        draw_lease,
        excerpts.no_beat_counts,
        has_incident(),
        lambda graph, spec: beats_border(graph.options, 1),
        5 * MS,
    ),
    # Agents are told that nothing listens whenever they try, which is not all the time.
    Case(
        "FD334",
        lambda random: job(JobOptions(controller_outage_ns=seconds(random, 0.1, 2.5))),
        excerpts.controller_dies,
        has_incident(),
        lambda graph, spec: graph.options.controller_outage_ns - SECOND - timeouts.TAKE_OVER_NS,
        200 * MS,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_the_rule_finds_what_the_simulator_shows_and_its_advice_helps(case: Case) -> None:
    wrong = right = 0
    for number in range(examples(16, 300)):
        graph, spec = case.draw(Random(number))
        found = case.found(graph)
        if abs(case.border(graph, spec)) <= case.blur or _is_of_another_rule(case.code, graph):
            continue
        assert (found is not None) == case.shows(play(case.scene(graph, spec))), (number, graph)
        right += found is None
        if found is None:
            continue
        wrong += 1
        better, changed = advised(graph, spec, found)
        assert case.found(better) is None, (number, found.help, graph)
        assert not case.shows(play(case.scene(better, changed))), (number, found.help, graph)
    assert wrong > 2
    assert right > 2


def _is_of_another_rule(code: str, graph: RoleGraph) -> bool:
    """Return whether what the scene shows may be what another rule is about: a narrower one of the same values."""
    codes = {found.code for found in find(graph)}
    return (code == "FD332" and "FD124" in codes) or (code == "FD333" and "FD156" in codes)


@pytest.mark.parametrize("field", ["start_timeout", "ready_timeout"])
def test_a_restart_with_a_checkpoint_takes_longer_than_the_first_start(field: str) -> None:
    seen = {True: 0, False: 0}
    about = {"start_timeout": "start_timeout_ns", "ready_timeout": "ready"}[field]
    for number in range(examples(30, 60)):
        graph, spec = (draw_start if field == "start_timeout" else draw_ready)(Random(number))
        load = spec.workload
        codes = {found.code: found for found in find(graph)}
        limit = getattr(spec, f"{field}_ns")
        border = limit - load.startup_ns - load.restore_ns
        if field == "start_timeout":
            border = start_border(graph, spec, load.restore_ns)
        if abs(border) <= 20 * MS or {"FD180", "FD181"} & set(codes):
            continue
        until_ns = load.startup_ns + load.restore_ns + load.warmup_ns + load.step_ns + limit
        shown = len(play(excerpts.restored(graph, spec, until_ns, about)).job.incidents) > 1
        found = codes.get("FD328")
        assert (found is not None) == shown, (number, graph)
        seen[shown] += 1
        if found is None:
            continue
        assert found.name == field
        better, changed = advised(graph, spec, found)
        assert not list(find(better))
        assert len(play(excerpts.restored(better, changed, until_ns, about)).job.incidents) == 1
    assert min(seen.values()) > 2
