"""Forecast of a run: what the simulator expects of the whole job, and of each incident when it has opened.

A forecast plays the job from its beginning, with times that were measured elsewhere. What came from outside by now is
in it (`reconstruct`), and so is what the command line has announced; nothing else. The simulated incident that is
the pair of the run's own says how long the recovery will take, and what it will cost.

The values are what a run keeps in its folder. They are checked when they are read: counts and times are not negative.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from flowdist.control.job.facts import Incident
from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.graph import MS, RoleGraph
from flowdist.record.accounts import Bucket, productive_share
from flowdist.record.journal import FaultLine, Header
from flowdist.record.story import IncidentStory, align, story_of
from flowdist.sim.calibration.calibration import Calibration
from flowdist.sim.calibration.observe import Mark, Observed, observe
from flowdist.sim.prediction import Run, as_injected, losses_of, play, predict
from flowdist.sim.reconstruct import reconstruct
from flowdist.sim.result import SimResult

Ns = Annotated[int, Meta(ge=0)]
Number = Annotated[int, Meta(ge=1)]
NOT_EXPECTED = "the simulation of the run so far has no such incident"


class ExpectedJob(msgspec.Struct, frozen=True):
    """Whole job as the simulator expects it: its outcome (None: it does not end), its length, and where time goes.

    `spent` is in ns, by role and bucket, without zeros. `tasks` are the roles whose time counts as goodput; `others`
    are the other tasks: their workers report no step numbers, so that a run does not show what they have lost.
    """

    outcome: str | None
    lasted_ns: Ns
    spent: dict[str, dict[Bucket, Ns]]
    tasks: tuple[str, ...]
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check that each task has a time account.

        Raises:
            ValueError: One has none.
        """
        if not set(self.tasks) <= self.spent.keys():
            raise ValueError("a task has no time account")

    @property
    def goodput(self) -> float | None:
        """Return the productive share of the time of the tasks, from 0 to 1; None if they have no time."""
        return productive_share(self.tasks, self.spent)


class ExpectedIncident(msgspec.Struct, frozen=True):
    """One incident of a run as the simulator expects it, and the whole job as it expects it from then on.

    `number`, `kind` and `root` are those of the run. If `why` is not empty, it says why the incident is not expected,
    and the fields after it but `job` mean nothing. Times are ns since the incident opened, None if that never comes;
    `lost_ns` is the lost work by role, for all its worlds.
    """

    number: Number
    kind: str
    root: str
    why: str = ""
    restarted: tuple[str, ...] = ()
    stayed: tuple[str, ...] = ()
    charged_to: str | None = None
    result: str = ""
    re_formed_ns: Ns | None = None
    next_step_ns: Ns | None = None
    lost_ns: dict[str, Ns] = msgspec.field(default_factory=dict)
    job: ExpectedJob | None = None

    @property
    def decision(self) -> dict[str, object]:
        """Return what the simulated controller decided, with the names and values of `IncidentStory.decision`."""
        return IncidentStory(
            self.number, self.kind, self.root, 0, self.restarted, self.stayed, self.charged_to, self.result, None
        ).decision


class Basis(NamedTuple):
    """Job whose roles have the times of the workers, and what was announced for it: the basis of its forecasts.

    `arrival_ns` is the time from the start of a node until its agent connects; None: it is not known. Rates in the
    plan are left out: what happens at random is unknown beforehand. `unreported` are the tasks whose workers report no
    step numbers.
    """

    graph: RoleGraph
    plan: Plan
    arrival_ns: int | None = None
    unreported: tuple[str, ...] = ()


def expect_job(basis: Basis) -> ExpectedJob:
    """Return what the simulator expects of a job that has not begun."""
    return _job(play(basis.graph, basis.plan._replace(rates=()), {}, basis.arrival_ns or 0), basis.unreported)


def expect_incident(basis: Basis, run: Run, number: int) -> ExpectedIncident:
    """Return what the simulator expects of an incident of a run, and of the whole job from then on.

    Args:
        basis: The job with its times, and the faults and orders that were announced.
        run: The record up to the present.
        number: The number of the incident, which the record has.

    Raises:
        BadLine: A line of the record cannot be replayed.
    """
    recorded = reconstruct(run.header, run.lines)
    placed = _at_steps(recorded.plan, observe(run.header, run.lines))

    def played(never: Collection[str] = ()) -> SimResult:
        happened = _with_returns(as_injected(placed, run, never), recorded.plan, basis.arrival_ns or 0)
        plan = _with_coming(happened, basis.plan, run)
        return play(basis.graph, plan, recorded.arrivals, basis.arrival_ns or 0)

    result = played()
    if never := {fault.spec for fault in result.unfired} & _injected(run):  # as in `predict`
        result = played(never)
    header = result.lines[0]
    assert isinstance(header, Header)
    was, found = story_of(run.header, run.lines), story_of(header, result.lines[1:])
    for one, other in align(was, found).pairs:
        if one is not None and one.number == number:
            return _expected(one, other, result, basis.unreported)
    raise ValueError(f"the record has no incident {number}")


def expect_afterwards(run: Run, calibration: Calibration) -> tuple[ExpectedJob, list[ExpectedIncident], list[str]]:
    """Return what the simulator expects of a recorded run, with all its faults known and the times of a calibration.

    Returns:
        The job, each incident of the run, and in words the incidents that the simulation alone has.

    Raises:
        BadLine: A line of the record cannot be replayed.
    """
    found = predict(run, calibration)
    pairs = found.stories.pairs
    unreported = calibration.unreported
    incidents = [_expected(one, other, found.result, unreported) for one, other in pairs if one is not None]
    more = [other for one, other in pairs if one is None and other is not None]
    texts = [f"the simulation has an incident more: {one.kind} of {one.root}" for one in more]
    return _job(found.result, unreported), incidents, texts


def losses_by_incident(run: Observed) -> dict[int, dict[str, int]]:
    """Return the lost work that each incident of a record has caused: ns by role, by the number of the incident."""
    found: dict[int, dict[str, int]] = {}
    for loss in losses_of(run):
        causes = [one for one in run.incidents if loss.world in one.worlds and one.opened_ns <= loss.at_ns]
        if causes:
            _add(found, causes[-1].number, loss.role, loss.ns)
    return found


def _simulated_losses(result: SimResult) -> dict[int, dict[str, int]]:
    """Return the lost work that each incident of a simulation has caused: ns by role, by the number of the incident.

    Work is lost before its incident opens, as a lost node is noticed late. So the cause is the first incident of the
    world that is not over by then.
    """
    found: dict[int, dict[str, int]] = {}
    for world, model in result.models.items():
        for at_ns, ns in model.losses:
            causes = [one for one in result.job.incidents if world in one.worlds and not _is_over(one, at_ns)]
            if causes:
                _add(found, causes[0].number, model.pace.name, ns)
    return found


def _is_over(incident: Incident, at_ns: int) -> bool:
    took_ns = incident.took_ns if incident.first_step_ns is None else incident.first_step_ns
    return took_ns is not None and incident.opened_ns + took_ns < at_ns


def _add(found: dict[int, dict[str, int]], number: int, role: str, ns: int) -> None:
    lost = found.setdefault(number, {})
    lost[role] = lost.get(role, 0) + ns


def _with_returns(plan: Plan, recorded: Plan, arrival_ns: int) -> Plan:
    """Return the plan with nodes that were killed and have returned: they are back when they were back in the run.

    The duration of such a fault in `recorded` ends when the agent has connected. In the simulation that is `arrival_ns`
    after the end of the fault.
    """
    away: dict[str, list[int | None]] = {}
    for fault in recorded.faults:
        away.setdefault(fault.target, []).append(fault.duration_ns)
    faults = []
    for fault in plan.faults:
        taken = away.get(fault.target, [])
        back_ns = taken.pop(0) if taken else None
        is_kill = fault.kind == "kill" and fault.duration_ns is not None
        if is_kill and back_ns is not None:
            head = fault.spec.rpartition("/")[0]
            fault = parse_fault(f"{head}/{max(back_ns - arrival_ns, MS) / MS:.6f}ms")
        faults.append(fault)
    return plan._replace(faults=tuple(faults))


def _injected(run: Run) -> set[str]:
    """Return the faults that were injected into the run, as their texts."""
    return {line.spec for line in run.lines if isinstance(line, FaultLine)}


def _with_coming(plan: Plan, announced: Plan, run: Run) -> Plan:
    """Return what happened to a run by now, and of what was announced, all that has not happened."""
    injected = _injected(run)
    now = max((line.t_ns for line in run.lines if not isinstance(line, Header)), default=0)
    coming = [fault for fault in announced.faults if fault.spec not in injected]
    return Plan(
        (*plan.faults, *coming),
        (*plan.scales, *(order for order in announced.scales if order.at_ns > now)),
        (*plan.adds, *(order for order in announced.adds if order.at_ns > now)),
        (*plan.drains, *(order for order in announced.drains if order.at_ns > now)),
    )


def _at_steps(plan: Plan, run: Observed) -> Plan:
    """Return the plan with its faults after the step that a task had reported last, instead of at a time of the run.

    A simulation of many hours is some steps before or behind the run. A fault at a time would then hit another place
    between two checkpoints, and the lost work would be any. A step that was reported twice, before a restart and after
    it, is no such place: its fault keeps the time.
    """
    marks = _marks(run)
    return plan._replace(faults=tuple(_at_step(fault, *marks) for fault in plan.faults)) if marks is not None else plan


def _marks(run: Observed) -> tuple[str, list[Mark]] | None:
    """Return the task with one world that has reported most steps, with its reports in order; None without any."""
    worlds: dict[str, set[str]] = {}
    marks: dict[str, list[Mark]] = {}
    for one in run.generations:
        worlds.setdefault(one.role, set()).add(one.world)
        marks.setdefault(one.role, []).extend(mark for mark in one.clock if not mark.is_count)
    found = [role for role, names in worlds.items() if len(names) == 1 and marks[role]]
    if not found:
        return None
    role = max(found, key=lambda name: len(marks[name]))
    return role, sorted(marks[role])


def _at_step(fault: Fault, role: str, marks: Sequence[Mark]) -> Fault:
    """Return the fault at the last step that the role had reported, if it has a time and that step was new then."""
    at_ns = fault.when.at_ns
    before = [mark for mark in marks if at_ns is not None and mark.at_ns <= at_ns]
    if at_ns is None or not before:
        return fault
    last = before[-1].step
    reached = next(number for number, mark in enumerate(before) if mark.step >= last)
    if any(mark.step != last for mark in before[reached:]):
        return fault
    target, _, rest = fault.spec.partition("@")
    how = rest.lstrip("0123456789.s")  # what follows the time, which `reconstruct` has written in seconds
    offset = f"{(at_ns - before[reached].at_ns) / MS:.6f}ms"
    return parse_fault(f"{target}@step={role},{last}+{offset}{how}")


def _job(result: SimResult, unreported: Collection[str]) -> ExpectedJob:
    spent = {role: {bucket: ns for bucket, ns in buckets.items() if ns} for role, buckets in result.spent.items()}
    tasks = tuple(role.name for role in result.job.graph.roles if role.kind == "task")
    told, others = (tuple(name for name in tasks if (name in unreported) == is_in) for is_in in (False, True))
    return ExpectedJob(result.job.outcome, result.now, spent, told, others)


def _expected(
    one: IncidentStory, other: IncidentStory | None, result: SimResult, unreported: Collection[str]
) -> ExpectedIncident:
    """Return the expectation of incident `one` of a run, whose pair in the simulation is `other`."""
    if other is None or (one.kind, one.root) != (other.kind, other.root):
        why = NOT_EXPECTED if other is None else f"the simulation has {other.kind} of {other.root} in its place"
        return ExpectedIncident(one.number, one.kind, one.root, why, job=_job(result, unreported))
    return ExpectedIncident(
        one.number,
        one.kind,
        one.root,
        "",
        other.restarted,
        other.stayed,
        other.charged_to,
        other.result,
        other.re_formed_ns,
        other.next_step_ns,
        {role: ns for role, ns in _simulated_losses(result).get(other.number, {}).items() if ns > 0},
        _job(result, unreported),
    )
