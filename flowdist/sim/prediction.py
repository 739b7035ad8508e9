"""Prediction of recorded runs: the simulator plays what happened to a run, with times that were measured elsewhere.

The simulation gets the faults and orders of the run, its length, and the times of a calibration. Everything else, the
decisions and when they are made, follows. The errors say how far the simulator can be trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.errors import FlowdistError
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import HOUR, RoleGraph
from flowdist.record.journal import FaultLine, Header, Line
from flowdist.record.story import Alignment, align, story_of
from flowdist.sim.calibration.calibration import Calibration, calibrate, calibrated
from flowdist.sim.calibration.observe import Generation, Observed, observe
from flowdist.sim.reconstruct import let_arrive, reconstruct
from flowdist.sim.simulation import SimResult, Simulation, with_nodes

CUT = 2 / 3  # the part of a single record from which its last part is predicted
ORDERS = ("scale", "add", "drain")  # kinds of faults that are orders


class Run(NamedTuple):
    """A record under the name that is shown for it, with the lines after the header."""

    name: str
    header: Header
    lines: Sequence[Line]


class Figure(NamedTuple):
    """One figure of a run as it was, and as it was predicted, in ns."""

    what: str
    real_ns: int
    predicted_ns: int

    @property
    def error(self) -> float | None:
        """Return the error as a share of the real figure; 0.0 if both are 0, None if the real figure alone is 0."""
        off = abs(self.predicted_ns - self.real_ns)
        return off / self.real_ns if self.real_ns else None if off else 0.0

    def is_within(self, share: float, ns: int = 0) -> bool:
        """Return whether the error is at most a share of the real figure, or at most `ns`."""
        return abs(self.predicted_ns - self.real_ns) <= max(share * self.real_ns, ns)


class Prediction(NamedTuple):
    """A run beside its prediction. `stories` is the run first, then the simulation, which is `result`."""

    name: str
    stories: Alignment
    result: SimResult

    @property
    def lasted(self) -> Figure:
        """Return how long the job took."""
        return Figure("total", self.stories.a.lasted_ns, self.stories.b.lasted_ns)

    @property
    def figures(self) -> list[Figure]:
        """Return the time to the next step of each incident that both have, and the lost work of each role.

        The lost work of roles whose workers reported no step numbers is not known.
        """
        found = []
        for one, other in self.stories.pairs:
            if one and other and one.next_step_ns is not None and other.next_step_ns is not None:
                found.append(Figure(f"incident {one.number}, next step", one.next_step_ns, other.next_step_ns))
        real, predicted = self.stories.a.lost_ns, self.stories.b.lost_ns
        for role in dict.fromkeys([*real, *predicted]):
            figure = Figure(f"lost work of {role}", real.get(role, 0), predicted.get(role, 0))
            found += [figure] if figure.real_ns or figure.predicted_ns else []
        return found


def predict(run: Run, calibration: Calibration, plan: Plan | None = None, seed: int = 0) -> Prediction:
    """Simulate what happened to a recorded run with the times of a calibration, and return both side by side.

    Args:
        run: The run.
        calibration: Times that were measured elsewhere. The number of steps is that of the run itself.
        plan: The faults and orders; None: those of the run. Faults that flowdist injected happen where their text says,
            such as at a step; others at the time of the run.
        seed: Draws what the calibration does not say, such as how soon peers notice a death; 0 is nominal.

    Raises:
        BadLine: A line of the record cannot be replayed.
    """
    recorded = reconstruct(run.header, run.lines)
    graph = calibrated(run.header.graph, calibration, keep=[f"{role.name}.steps" for role in run.header.graph.roles])
    graph = with_nodes(_with_length_of(graph, run, calibration))
    arrivals = recorded.arrivals if calibration.arrival_ns is None else {}
    result = play(graph, plan or as_injected(recorded.plan, run), arrivals, calibration.arrival_ns or 0, seed)
    if plan is None and result.unfired:  # such as at a checkpoint of a service, which the simulator does not play
        never = {fault.spec for fault in result.unfired}
        result = play(graph, as_injected(recorded.plan, run, never), arrivals, calibration.arrival_ns or 0, seed)
    header = result.lines[0]
    assert isinstance(header, Header)
    observed = observe(run.header, run.lines)
    reporting = {one.role for one in observed.generations if one.reached}  # of the others no loss is known
    lost_ns = {role: ns for role, ns in _simulated_lost_ns(result).items() if role in reporting}
    was = story_of(run.header, run.lines)._replace(lost_ns=_lost_ns(observed))
    found = story_of(header, result.lines[1:])._replace(lost_ns=lost_ns)
    stories = align(was, found)
    return Prediction(run.name, stories, result)


class Loss(NamedTuple):
    """Steps that a world did again, as the time in ns of so many mean steps of the role.

    `at_ns` is when the generation that did them again was ordered to start.
    """

    role: str
    world: WorldName
    at_ns: int
    ns: int


def losses_of(run: Observed) -> Iterator[Loss]:
    """Yield the steps of each task that a run did again, generation by generation.

    Time accounts would count a save that was under way as well, in a run and not in its simulation.
    """
    times = calibrate([run]).roles
    last: dict[tuple[str, str], Generation] = {}
    for one in run.generations:
        before = last.get((one.role, one.world))
        last[one.role, one.world] = one
        if before is None or not one.clock or one.clock[0].is_count:
            continue
        begun = one.clock[0].step - 1
        resumed = begun if one.resumed is None else min(one.resumed, begun)
        step_ns = times[one.role].fields.get("step_ns", 0)
        yield Loss(one.role, one.world, one.ordered_ns, max(0, before.reached - resumed) * step_ns)


def _lost_ns(run: Observed) -> dict[str, int]:
    """Return the time of the steps of each task that a run did again, in ns, for all worlds of the role."""
    lost = dict[str, int]()
    for loss in losses_of(run):
        lost[loss.role] = lost.get(loss.role, 0) + loss.ns
    return lost


def _simulated_lost_ns(result: SimResult) -> dict[str, int]:
    """Return the time of the steps of each task that a simulation did again, in ns, for all worlds of the role."""
    lost = dict[str, int]()
    for model in result.models.values():
        lost[model.pace.name] = lost.get(model.pace.name, 0) + model.lost_ns
    return {role: ns for role, ns in lost.items() if ns}


def play(graph: RoleGraph, plan: Plan, arrivals: Mapping[NodeName, int], arrival_ns: int, seed: int = 0) -> SimResult:
    """Simulate a job to its end.

    Args:
        graph: The job, with nodes.
        plan: The faults and orders.
        arrivals: When the agents of nodes connect first, in ns, by node.
        arrival_ns: Time from the start of the other nodes until their agents connect.
        seed: That of the simulation.

    Raises:
        FlowdistError: A check of the simulator has failed. A job that never ends is no such failure.
    """
    simulation = Simulation(graph, plan, seed=seed, checks="paced", arrival_ns=arrival_ns)
    return checked(let_arrive(simulation, arrivals).run(1000 * HOUR))


def checked(result: SimResult) -> SimResult:
    """Return the result of a simulation if its figures may be used.

    Raises:
        FlowdistError: A check of the simulator has failed. A job that never ends is no such failure.
    """
    if result.violation is not None and result.violation.property != "liveness":
        raise FlowdistError(f"the simulation has found a violation: {result.violation}")
    return result


def held_out(runs: Sequence[Run]) -> list[Prediction]:
    """Return how well each run is predicted by what the others show; a single run by its own first two thirds.

    Raises:
        BadLine: A line of a record cannot be replayed.
    """
    if len(runs) == 1:
        end_ns = max(line.t_ns for line in runs[0].lines if not isinstance(line, Header))
        first = [line for line in runs[0].lines if not isinstance(line, Header) and line.t_ns <= CUT * end_ns]
        return [predict(runs[0], calibrate([observe(runs[0].header, first)]))]
    seen = [observe(run.header, run.lines) for run in runs]
    return [predict(run, calibrate(_without(seen, number))) for number, run in enumerate(runs)]


def _without(seen: Sequence[Observed], number: int) -> list[Observed]:
    return [one for other, one in enumerate(seen) if other != number]


def _with_length_of(graph: RoleGraph, run: Run, calibration: Calibration) -> RoleGraph:
    """Return the graph with the numbers of steps of the run itself: its length is no time that could be predicted.

    Where the run itself does not show that number for certain, because its steps were counted, the calibration has it.
    """
    own = calibrate([observe(run.header, run.lines)])
    roles = []
    for role in graph.roles:
        times, other = own.roles[role.name], calibration.roles.get(role.name)
        steps = times.fields.get("steps", role.workload.steps)
        if times.length != "known" and other is not None:
            steps = other.fields.get("steps", steps)
        roles.append(msgspec.structs.replace(role, workload=msgspec.structs.replace(role.workload, steps=steps)))
    return msgspec.structs.replace(graph, roles=tuple(roles))


def as_injected(plan: Plan, run: Run, never: Collection[str] = ()) -> Plan:
    """Return the plan with the faults of the run as they were given, at a step or an event instead of at a time.

    Faults that flowdist did not inject, and those in `never`, keep their time. Orders of the operator are in the plan
    already.
    """
    injected = [line for line in run.lines if isinstance(line, FaultLine) and line.spec not in never]
    given = parse_plan(dict.fromkeys(line.spec for line in injected)).faults
    hits = {line.hit.partition(".")[0] for line in injected}
    others = [fault for fault in plan.faults if fault.spec.partition("@")[0] not in hits]
    return plan._replace(faults=(*(fault for fault in given if fault.kind not in ORDERS), *others))
