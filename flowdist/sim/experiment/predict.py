"""Prediction of recorded runs: the simulator plays what happened to a run, with times that were measured elsewhere.

The experiment gets the faults and orders of the run, its length, and the times of a calibration. Everything else, the
decisions and when they are made, follows. The errors say how far the simulator can be trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from flowdist.control.protocol.ids import WorldName
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.faults.kinds import having
from flowdist.graph import HOUR, RoleGraph, RoleSpec
from flowdist.record.journal import FaultLine, Header
from flowdist.record.reader import WholeRecord
from flowdist.sim.calibration.calibration import Calibration, calibrate, calibrated
from flowdist.sim.calibration.observe import Generation, Observed, observe
from flowdist.sim.experiment.compare import Comparison, compare
from flowdist.sim.experiment.experiment import NO_ARRIVALS, Experiment
from flowdist.sim.experiment.outcome import Outcome, of_record
from flowdist.sim.experiment.play import checked, play
from flowdist.sim.experiment.record import reconstruct
from flowdist.sim.result import SimResult, worlds_of
from flowdist.sim.simulation import with_nodes
from flowdist.sim.user_code.workload import with_workloads

CUT = 2 / 3  # the part of a single record from which its last part is predicted
END_NS = 1000 * HOUR


class Loss(NamedTuple):
    """Steps that a world did again, as the time in ns of so many steps of the role, and the incident that cost them."""

    role: str
    ns: int
    incident: int | None  # its number; None: none is known


def predict(run: WholeRecord, times: Calibration, plan: Plan | None = None, seed: int = 0) -> Comparison:
    """Simulate what happened to a recorded run with measured times, and return both side by side, the run first.

    `times` were measured elsewhere; the number of steps is that of the run itself. Without a `plan`, faults and orders
    are those of the run: faults that flowdist injected happen where their text says, such as at a step; others at the
    time of the run. `seed` draws what the calibration does not say, such as how soon peers notice a death.

    Raises BadLine if a line cannot be replayed, and FlowdistError if a check of the simulator has failed. A job that
    never ends is no such failure.
    """
    observed, recorded = observe(run.header, run.lines), reconstruct(run.header, run.lines)
    own = calibrate([observed])
    experiment = Experiment(
        with_nodes(_with_times(run.header.graph, times, own)),
        plan or _as_injected(recorded.plan, run),
        END_NS,
        seed,
        arrivals=recorded.arrivals if times.arrival_ns is None else NO_ARRIVALS,
        arrival_ns=times.arrival_ns or 0,
    )
    played = checked(play(experiment), may_stand_still=True)
    if plan is None and played.exact.unfired:  # such as at a checkpoint of a service, which the simulator does not play
        never = {fault.spec for fault in played.exact.unfired}
        experiment = experiment._replace(plan=_as_injected(recorded.plan, run, never))
        played = checked(play(experiment), may_stand_still=True)
    was = _with_losses(of_record(run.header, run.lines), losses_of(observed, own))
    found = _with_losses(played, _simulated_losses(played.exact))._replace(worlds=worlds_of(played.exact.lines))
    reporting = {one.role for one in observed.generations if one.reached}  # what others have lost is not known
    return compare(was, found._replace(lost_ns={role: ns for role, ns in found.lost_ns.items() if role in reporting}))


def _with_losses(outcome: Outcome, losses: Iterable[Loss]) -> Outcome:
    """Return the outcome with the lost work of each role and of each incident, as the time of steps.

    Time accounts would count a save that was under way as well, in a run and not in its simulation.
    """
    by_role, by_incident = dict[str, int](), dict[int | None, dict[str, int]]()
    for loss in losses:
        for lost in (by_role, by_incident.setdefault(loss.incident, {})):
            lost[loss.role] = lost.get(loss.role, 0) + loss.ns
    incidents = tuple(one._replace(lost_ns=by_incident.get(one.number, {})) for one in outcome.incidents)
    return outcome._replace(incidents=incidents, lost_ns=by_role)


def losses_of(run: Observed, own: Calibration) -> Iterator[Loss]:
    """Yield the steps of each task that a run did again, generation by generation, in mean steps of the role.

    The cause is the last incident of the world before the generation that did them again was ordered.
    """
    last: dict[tuple[str, WorldName], Generation] = {}
    for one in run.generations:
        before = last.get((one.role, one.world))
        last[one.role, one.world] = one
        if before is None or not one.clock or one.clock[0].is_count:
            continue
        begun = one.clock[0].step - 1
        resumed = begun if one.resumed is None else min(one.resumed, begun)
        step_ns = own.roles[one.role].fields.get("step_ns", 0)
        causes = [each for each in run.incidents if one.world in each.worlds and each.opened_ns <= one.ordered_ns]
        number = causes[-1].number if causes else None
        yield Loss(one.role, max(0, before.reached - resumed) * step_ns, number)


def _simulated_losses(result: SimResult) -> Iterator[Loss]:
    """Yield the steps that the worlds of a simulation did again.

    Work is lost before its incident opens, as a lost node is noticed late. So the cause is the first incident of the
    world that is not over by then.
    """
    for world, model in result.models.items():
        for at_ns, ns, _ in model.losses:
            causes = (one for one in result.job.incidents if world in one.worlds)
            cause = next(
                (one for one in causes if (took := one.recovered_ns) is None or one.opened_ns + took >= at_ns), None
            )
            for role in model.roles:
                yield Loss(role, ns, None if cause is None else cause.number)


def _with_times(graph: RoleGraph, times: Calibration, own: Calibration) -> RoleGraph:
    """Return the graph with measured times, and with the numbers of steps of the run itself (`own`).

    Its length is no time that could be predicted. Where the run does not show that number for certain, because its
    steps were counted, the other times have it.
    """

    def steps(role: RoleSpec) -> dict[str, int]:
        known = own.roles[role.name].fields
        if own.roles[role.name].length != "known" and role.name in times.roles:
            known = known | times.roles[role.name].fields
        return {"steps": known["steps"]} if "steps" in known else {}

    return with_workloads(calibrated(graph, times, keep=[f"{role.name}.steps" for role in graph.roles]), steps)


def _as_injected(plan: Plan, run: WholeRecord, never: Collection[str] = ()) -> Plan:
    """Return the plan with the faults of the run as they were given, at a step or an event instead of at a time.

    Faults that flowdist did not inject, and those in `never`, keep their time. Orders are in the plan already.
    """
    injected = [line for line in run.lines if isinstance(line, FaultLine) and line.spec not in never]
    given = parse_plan(dict.fromkeys(line.spec for line in injected)).faults
    hits = {line.hit.partition(".")[0] for line in injected}
    others = [fault for fault in plan.faults if fault.spec.partition("@")[0] not in hits]
    return plan._replace(faults=(*(fault for fault in given if fault.kind not in having("order")), *others))


def held_out(runs: Sequence[WholeRecord]) -> list[Comparison]:
    """Return how well each run is predicted by what the others show; a single run by its own first two thirds."""
    if len(runs) == 1:
        (run,) = runs
        lines = [line for line in run.lines if not isinstance(line, Header)]
        end_ns = CUT * max(line.t_ns for line in lines)
        return [predict(run, calibrate([observe(run.header, [line for line in lines if line.t_ns <= end_ns])]))]
    seen = [observe(run.header, run.lines) for run in runs]
    others = [[one for other, one in enumerate(seen) if other != number] for number in range(len(runs))]
    return [predict(run, calibrate(known)) for run, known in zip(runs, others, strict=True)]
