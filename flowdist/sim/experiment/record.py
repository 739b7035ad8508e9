"""The experiment of a recorded job: its faults as a plan, and its work as workloads.

The journal of a run holds what came from outside (a worker that failed, a node that was lost, an order of the operator)
and the decisions about it. The reconstruction keeps only what came from outside. In the experiment the controller
decides anew, under the same policies or others. Faults keep the times of the run, whatever the simulated job does then.

The trace of a simulation has more: the faults as they were given, the seed, and the workloads in its graph. Its
experiment is the same job, to the nanosecond.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from flowdist.control.job.facts import Incident
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import NodeName
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.faults.kinds import having
from flowdist.graph import MINUTE, MS, SECOND, WorkloadSpec
from flowdist.graph.role_graph import GROUP_TIMEOUTS_NS
from flowdist.record.journal import AccountLine, FaultLine, Header, Line, Record
from flowdist.sim.calibration.calibration import calibrate, calibrated
from flowdist.sim.calibration.observe import Observed, Observer
from flowdist.sim.engine.controller import TAKE_OVER_NS
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.engine.node import PROOF_NS
from flowdist.sim.experiment.experiment import NO_ARRIVALS, Experiment, Gaps
from flowdist.sim.simulation import with_nodes


def of_record(header: Header, lines: Sequence[Line]) -> Experiment:
    """Return the experiment of a recorded job; without the id of a run, the record is that of a simulation.

    Raises BadLine if a line cannot be replayed, and FaultError if a fault of a trace cannot be read.
    """
    found = reconstruct(header, lines)
    if header.run_id:
        left_out = (*found.gaps.left_out, *_unseen(found.plan, lines))
        return found._replace(gaps=found.gaps._replace(left_out=left_out))
    arrival_ns = min(found.arrivals.values(), default=0)  # later ones are effects of faults
    schedule = header.options.get("schedule", "")
    is_told = bool(lines) and isinstance(lines[-1], AccountLine)
    return Experiment(
        with_nodes(header.graph),
        _as_given(found.plan, lines, arrival_ns),
        seed=header.seed,
        schedule=int(schedule) if schedule.isdecimal() else 0,
        arrivals=NO_ARRIVALS,
        arrival_ns=arrival_ns,
        gaps=Gaps(untold=() if is_told else found.gaps.untold),  # the trace has each fault, and all times
    )


def reconstruct(header: Header, lines: Sequence[Line]) -> Experiment:
    """Return the experiment that events show: faults, orders, arrivals, measured times; BadLine for a wrong line."""
    found = _Reconstruction(header)
    for line in lines:
        found.add(line)
    observed = found.end()
    texts = sorted(found.faults, key=lambda fault: fault[0])  # stable: faults of one time stay in order
    plan = parse_plan([text for _, text in texts], found.scales, found.adds, found.drains)
    times = calibrate([observed])
    graph = calibrated(header.graph, times)
    unknown = [role for role in header.graph.roles if role.primary and times.roles[role.name].length == "unknown"]
    first = [name for name, role in times.roles.items() if header.run_id and not role.tells_restarts]
    gaps = Gaps(
        tuple(found.left_out),
        guesses={name: role.silent for name, role in times.roles.items() if role.silent},
        untold=tuple(name for name, role in times.roles.items() if not role.tells_saving),
        endless=tuple(r.name for r in unknown if header.run_id and r.workload.steps == WorkloadSpec().steps),
        unrestarted=tuple(name for name in first if graph.role(name).workload.warm_startup_ns is None),
    )
    return Experiment(with_nodes(graph), plan, arrivals=found.arrivals, gaps=gaps)


def _unseen(plan: Plan, lines: Sequence[Line]) -> list[str]:
    """Return a text for each injected fault that left no event, which would be in the plan at about the same time."""
    seen = [(fault.target, fault.when.at_ns or 0) for fault in plan.faults]

    def is_seen(line: FaultLine) -> bool:
        return any(line.hit.partition(".")[0] == target and abs(line.t_ns - at) < MINUTE for target, at in seen)

    hits = [line for line in lines if isinstance(line, FaultLine) and parse_fault(line.spec).kind in having("unseen")]
    specs = dict.fromkeys(line.spec for line in hits if not is_seen(line))
    return [f"{spec} was injected, and left no event" for spec in specs]


def _as_given(plan: Plan, lines: Sequence[Line], arrival_ns: int) -> Plan:
    """Return the plan of a simulation from its reconstruction and its trace, which has each fault that hit something.

    Orders that are in the trace as faults (`trainer@5m:scale=4`) are left out of the reconstructed ones. A node that
    was added is reconstructed at the time when its agent has joined: the order came before that.
    """
    hits = [line for line in lines if isinstance(line, FaultLine)]
    faults = parse_plan(dict.fromkeys(line.spec for line in hits)).faults
    orders = [
        (fault.kind, line.hit, line.t_ns) for line in hits if (fault := parse_fault(line.spec)).kind in having("order")
    ]
    early_ns = LATENCY_NS + arrival_ns
    return Plan(
        faults,
        tuple(scale for scale in plan.scales if not _is_among(orders, "scale", scale.role, scale.at_ns)),
        tuple(
            add._replace(at_ns=max(0, add.at_ns - early_ns))
            for add in plan.adds
            if not _is_among(orders, "add", add.node, add.at_ns - early_ns)
        ),
        tuple(drain for drain in plan.drains if not _is_among(orders, "drain", drain.node, drain.at_ns)),
    )


def _is_among(orders: Sequence[tuple[str, str, int]], kind: str, target: str, at_ns: int) -> bool:
    """Return whether an order of this kind went to the target within a second of the time."""
    return any((kind, target) == order[:2] and abs(at_ns - order[2]) < SECOND for order in orders)


def _at(ns: int) -> str:
    """Return a time in ns as the fault grammar writes it, in seconds: `1.5s`. A negative time becomes `0s`."""
    return f"{max(0, ns) / SECOND:.6f}".rstrip("0").rstrip(".") + "s"


class _Reconstruction:
    """One pass through a record: `add` takes each line in order, `end` completes the faults.

    The controller of the observer shows which failures opened an incident, and so were causes.
    """

    def __init__(self, header: Header) -> None:
        self._graph = header.graph
        self._observer = Observer(header)
        self._job = self._observer.replay.job
        self._away: dict[str, tuple[int, str]] = {}  # nodes that are gone: since when, and the kind of fault (":lost")
        self._failures = 0  # failures that have become faults
        self._stalled: dict[str, int] = {}  # when stalled replicas showed their last sign of life
        self._waited_ns: dict[str, int] = {}  # how long collectives of a role wait, which one that timed out shows
        self._hung: set[int] = set()  # numbers of incidents whose hang is a fault already
        self._hit: dict[str, int] = {}  # when the run injected a fault, by its target
        self._declared = dict.fromkeys(node.name for node in header.graph.cluster.nodes)
        self._seen: dict[str, int] = {}  # the last incarnation of each node that has joined
        self.arrivals: dict[NodeName, int] = {}
        self.faults: list[tuple[int, str]] = []
        self.scales: list[str] = []
        self.adds: list[str] = []
        self.drains: list[str] = []
        self.left_out: list[str] = []

    def add(self, line: Line) -> None:
        """Note what a line says about the plan that would tell the same story; nothing after the end of the job."""
        job = self._job
        before, is_over = (len(job.incidents), job.ending), job.outcome is not None
        self._observer.hear(line)
        if isinstance(line, FaultLine):
            self._hit[line.hit] = line.t_ns
        if not isinstance(line, Record) or is_over:
            return
        if isinstance(line.event, ev.ReplicaStalled):
            self._stalled[str(line.event.replica)] = line.t_ns - line.event.for_ns
        if isinstance(line.event, ev.ReplicaExited) and line.event.cause == "collective_timeout":
            role = self._graph.role(line.event.replica.role)
            usual = GROUP_TIMEOUTS_NS["hang" if line.event.signal == "ABRT" else "fail"]
            self._waited_ns[role.name] = role.workload.group_timeout_ns or usual
        is_cause = (len(job.incidents), job.ending) != before
        for incident in job.incidents[before[0] :]:
            if incident.kind == "hang" and incident.root in self._stalled:
                self._hang(incident, self._stalled[incident.root])
        self._note(line.event, line.t_ns, is_cause)

    def _hang(self, incident: Incident, since: int) -> None:
        self._hung.add(incident.number)
        self._fault(since, f"{incident.root}@{_at(since)}:hang")

    def _break(self, event: ev.CopyBroken, now: int) -> None:
        """Make a fault of broken copies, once for a node: from when the generation began that found them by reading."""
        world = self._job.worlds[event.world]
        began = min(self._job.replicas[member].started_ns for member in world.members)
        at = now - MS if event.generation == world.generation else began
        fault = (at, f"{event.node}@{_at(at)}:broken-copy")
        if fault not in self.faults:
            self._fault(*fault)

    def _hang_behind_timeouts(self) -> None:
        """Make a fault of each hang behind a collective timeout, from when it was injected or noticed."""
        for incident in self._job.incidents:
            waited_ns = self._waited_ns.get(incident.root.partition("/")[0])
            if incident.kind == "hang" and waited_ns is not None and incident.number not in self._hung:
                hit = self._hit.get(incident.root)
                self._hang(incident, incident.opened_ns - waited_ns if hit is None else hit)

    def _note(self, event: ev.Event, now: int, is_cause: bool) -> None:
        match event:
            case ev.ReplicaExited(cause="collective_timeout"):
                why = "because a collective timed out, which a hang explains"
                self.left_out.append(f"{event.replica} failed at {now / 1e9:.2f}s {why}")
            case ev.ReplicaExited(kind=str()):
                self._failure(event, now, is_cause)
            case ev.NodeGone():
                self._lose(event.node, now - PROOF_NS, "")
            case ev.NodeSilent():
                options = self._graph.options
                self._lose(event.node, now - options.lease_ns - options.lease_margin_ns, ":lost")
            case ev.NodeLeft():
                self._lose(event.node, now, ":leave")
            case ev.NodePreempted():
                self._lose(event.node, now, f":preempt={_at(event.notice_ns)}")  # what follows is its effect
            case ev.CopyBroken():
                self._break(event, now)
            case ev.NodeJoined():
                self._join(event, now)
            case ev.ScaleRequested():
                self.scales.append(f"{event.role}={event.replicas}@{_at(now)}")
            case ev.DrainRequested():
                self.drains.append(f"{event.node}@{_at(now)}")
            case ev.ControllerStarted():
                self._fault(now - TAKE_OVER_NS, f"controller@{_at(now - TAKE_OVER_NS)}")
            case ev.StoreLost():
                self.left_out.append(f"the store of {event.world} was lost at {now / 1e9:.2f}s")
            case ev.CancelRequested():
                self.left_out.append(f"the job was ended from outside at {now / 1e9:.2f}s: {event.reason}")
            case ev.GpuFailed():
                self._fault(now, f"{event.node}@{_at(now)}:xid={event.xid},{event.gpu}")
            case ev.CordonRequested() | ev.UncordonRequested() | ev.ReplicaUnkillable():
                self.left_out.append(f"{type(event).__name__} at {now / 1e9:.2f}s")
            case _:
                pass

    def _fault(self, at: int, text: str) -> None:
        self.faults.append((max(0, at), text))

    def _failure(self, event: ev.ReplicaExited, now: int, is_cause: bool) -> None:
        """Make a fault of a failed exit, or note in `left_out` why there is none.

        There is none for a failure that only followed from another one: it opened no incident (`is_cause` is false),
        and no fault was injected into the replica within `cause_window` before. In the simulation it follows again.
        There is none for a replica that did not come up either.
        """
        hit = self._hit.get(str(event.replica), self._hit.get(f"{event.replica}.{event.local_rank}"))
        if not is_cause and (hit is None or now - hit > self._graph.options.cause_window_ns):
            self.left_out.append(f"{event.replica} failed at {now / 1e9:.2f}s in the wake of another failure")
            return
        if event.kind in ("start_failed", "unready"):
            self.left_out.append(f"{event.replica} did not come up at {now / 1e9:.2f}s ({event.kind})")
            return
        how = {"oom": ":oom", "hang": ":hang"}.get(event.kind or "", f":exit={event.exit_code}")
        if event.signal is not None and event.kind == "signal":
            number = signal.Signals[f"SIG{event.signal}"]
            how = "" if number == signal.SIGKILL else f":exit={128 + number}"  # R16
        # Failure n is n microseconds later, so that of two failures at one time the first is handled before the second.
        self._failures += 1
        at = now - LATENCY_NS + self._failures * 1000
        self._fault(at, f"{event.replica}@{_at(at)}{how}")

    def _lose(self, node: str, at: int, how: str) -> None:
        """Note that a node is gone since `at`, unless it is gone already. `how` is the kind of its fault."""
        if node not in self._away:
            self._away[node] = (max(0, at), how)

    def _join(self, event: ev.NodeJoined, now: int) -> None:
        """Note that a node has arrived for the first time, was added, or is back, which ends the fault that took it."""
        before = self._seen.get(event.node)
        self._seen[event.node] = event.incarnation
        if before is None and event.node in self._declared:
            self.arrivals[event.node] = max(0, now - LATENCY_NS)
        if before == event.incarnation and self._away.get(event.node, (0, ""))[1].startswith(":preempt"):
            return  # a preempted node that connects again, such as to the next controller, is still to be taken away
        gone = self._away.pop(event.node, None)
        if gone is None and before is not None and before < event.incarnation:
            gone = (now - PROOF_NS, "")  # the agent was restarted before its silence was noticed
        if gone is not None:
            since, how = gone
            self._fault(since, f"{event.node}@{_at(since)}{how}/{_at(max(1000, now - since))}")
        elif before is None and event.node not in self._declared:
            self.adds.append(f"{event.node}@{_at(now)}")

    def end(self) -> Observed:
        """Add the faults that only the whole record shows, and return what was observed. Called after the last line."""
        self._hang_behind_timeouts()
        for node, (since, how) in self._away.items():
            self._fault(since, f"{node}@{_at(since)}{how}")
        return self._observer.end()
