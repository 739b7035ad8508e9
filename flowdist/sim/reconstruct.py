"""Reconstruction of a recorded job for the simulator: its faults as a plan, and its work as workloads.

The journal of a run holds what came from outside (a worker that failed, a node that was lost, an order of the operator)
and the decisions about it. The reconstruction keeps only what came from outside. In the simulation the controller
decides anew, under the same policies or others. Faults keep the times of the run, whatever the simulated job does then.
"""

from __future__ import annotations

import signal
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from flowdist.control.job.facts import Incident
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import SECOND, RoleGraph, RoleSpec, WorkloadSpec
from flowdist.graph.roles import GROUP_TIMEOUTS_NS
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.record.replay import Replay
from flowdist.sim.engine.controller import TAKE_OVER_NS
from flowdist.sim.engine.machines import PROOF_NS
from flowdist.sim.engine.network import LATENCY_NS
from flowdist.sim.simulation import Simulation

# The fields of a workload that the measured times contain, so that they are 0 in a reconstruction: the time of a step
# contains checkpoints, and the time until the first report contains restore and warm-up.
INCLUDED = {"checkpoint_ns": 0, "checkpoint_blocks_ns": None, "restore_ns": 0, "warmup_ns": 0}


class Reconstructed(NamedTuple):
    """Everything that came from outside the controller in a recorded job, as input of a simulation.

    `plan` has the faults and the orders of the operator. `arrivals` has, by declared node, the time in ns at which its
    first agent connected; nodes whose agents never did are left out. `workloads` are by role, measured where the record
    allows it. `omitted` has a line of text for each thing that the simulation does not repeat.
    """

    plan: Plan
    arrivals: dict[NodeName, int]
    workloads: dict[str, WorkloadSpec]
    omitted: tuple[str, ...]


def reconstruct(header: Header, lines: Sequence[Line]) -> Reconstructed:
    """Return the faults, orders, arrivals of nodes and workloads that a record shows: see `Reconstructed`.

    Args:
        header: The header of the record; its graph describes the cluster.
        lines: The other lines, in order.
    """
    found = _Reconstruction(header)
    for line in lines:
        found.add(line)
    found.end()
    texts = sorted(found.faults, key=lambda fault: fault[0])  # stable: faults of one time stay in order
    plan = parse_plan([text for _, text in texts], found.scales, found.adds, found.drains)
    workloads, unmeasured = measured(header.graph, lines)
    return Reconstructed(plan, found.arrivals, workloads, (*found.omitted, *unmeasured))


def let_arrive(simulation: Simulation, arrivals: Mapping[NodeName, int]) -> Simulation:
    """Set when the agents of nodes connect first, and return the simulation.

    Args:
        simulation: One that has not run yet; it is changed.
        arrivals: Virtual times in ns, by node. Nodes that the simulation does not have are ignored. The agents of nodes
            that are not named connect at the start.
    """
    for name, at in arrivals.items():
        if name in simulation.nodes:
            simulation.nodes[name].comes_at_ns = at
    return simulation


def with_workloads(graph: RoleGraph, workloads: dict[str, WorkloadSpec]) -> RoleGraph:
    """Return a copy of the graph in which the named roles have these workloads. The other roles keep their own."""
    roles = tuple(
        msgspec.structs.replace(role, workload=workloads[role.name]) if role.name in workloads else role
        for role in graph.roles
    )
    return msgspec.structs.replace(graph, roles=roles)


def _at(ns: int) -> str:
    """Return a time in ns as the fault grammar writes it, in seconds: `1.5s`. A negative time becomes `0s`."""
    return f"{max(0, ns) / SECOND:.6f}".rstrip("0").rstrip(".") + "s"


class _Reconstruction:
    """One pass through a record: `add` takes each line in order, `end` completes the faults.

    A fresh controller handles the recorded events. It shows which failures opened an incident, and so were causes.
    """

    def __init__(self, header: Header) -> None:
        self._graph = header.graph
        self._replay = Replay(header)
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
        self.omitted: list[str] = []

    def add(self, line: Line) -> None:
        """Note what a line of the record says about the plan that would tell the same story.

        That is faults that were injected or can be inferred, requests of the operator to scale or drain, and when nodes
        joined. Events after the end of the job are ignored.
        """
        if isinstance(line, FaultLine):
            self._hit[line.target or line.spec.partition("@")[0]] = line.t_ns
        job = self._replay.job
        if not isinstance(line, Record):
            self._replay.hear(line)
            return
        if job.outcome is not None:
            return
        before = len(job.incidents), job.ending
        if isinstance(line.event, ev.ReplicaStalled):
            self._stalled[str(line.event.replica)] = line.t_ns - line.event.for_ns
        if isinstance(line.event, ev.ReplicaExited) and line.event.cause == "collective_timeout":
            role = self._graph.role(line.event.replica.role)
            usual = GROUP_TIMEOUTS_NS["hang" if line.event.signal == "ABRT" else "fail"]
            self._waited_ns[role.name] = role.workload.group_timeout_ns or usual
        self._replay.hear(line)
        is_cause = (len(job.incidents), job.ending) != before
        for incident in job.incidents[before[0] :]:
            if incident.kind == "hang" and incident.root in self._stalled:
                self._hang(incident, self._stalled[incident.root])
        self._note(line.event, line.t_ns, is_cause)

    def _hang(self, incident: Incident, since: int) -> None:
        self._hung.add(incident.number)
        self._fault(since, f"{incident.root}@{_at(since)}:hang")

    def _hang_behind_timeouts(self) -> None:
        """Make a fault of each hang that was found because a collective of a peer timed out.

        It began when the run injected it, or else when the peer began to wait.
        """
        for incident in self._replay.job.incidents:
            waited_ns = self._waited_ns.get(incident.root.partition("/")[0])
            if incident.kind == "hang" and waited_ns is not None and incident.number not in self._hung:
                hit = self._hit.get(incident.root)
                self._hang(incident, incident.opened_ns - waited_ns if hit is None else hit)

    def _note(self, event: ev.Event, now: int, is_cause: bool) -> None:
        match event:
            case ev.ReplicaExited(cause="collective_timeout"):
                why = "because a collective timed out, which a hang explains"
                self.omitted.append(f"{event.replica} failed at {now / 1e9:.2f}s {why}")
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
            case ev.NodeJoined():
                self._join(event, now)
            case ev.ScaleRequested():
                self.scales.append(f"{event.role}={event.replicas}@{_at(now)}")
            case ev.DrainRequested():
                self.drains.append(f"{event.node}@{_at(now)}")
            case ev.ControllerStarted():
                self._fault(now - TAKE_OVER_NS, f"controller@{_at(now - TAKE_OVER_NS)}")
            case ev.StoreLost():
                self.omitted.append(f"the store of {event.world} was lost at {now / 1e9:.2f}s")
            case ev.CancelRequested():
                self.omitted.append(f"the operator cancelled the job at {now / 1e9:.2f}s")
            case ev.GpuFailed():
                self._fault(now, f"{event.node}@{_at(now)}:xid={event.xid},{event.gpu}")
            case ev.CordonRequested() | ev.UncordonRequested() | ev.ReplicaUnkillable():
                self.omitted.append(f"{type(event).__name__} at {now / 1e9:.2f}s")
            case _:
                pass

    def _fault(self, at: int, text: str) -> None:
        self.faults.append((max(0, at), text))

    def _failure(self, event: ev.ReplicaExited, now: int, is_cause: bool) -> None:
        """Make a fault of a failed exit, or note in `omitted` why there is none.

        There is none for a failure that only followed from another one: it opened no incident (`is_cause` is false),
        and no fault was injected into the replica within `cause_window` before. In the simulation it follows again.
        There is none for a replica that did not come up either.
        """
        hit = self._hit.get(str(event.replica), self._hit.get(f"{event.replica}.{event.local_rank}"))
        if not is_cause and (hit is None or now - hit > self._graph.options.cause_window_ns):
            self.omitted.append(f"{event.replica} failed at {now / 1e9:.2f}s in the wake of another failure")
            return
        if event.kind in ("start_failed", "unready"):
            self.omitted.append(f"{event.replica} did not come up at {now / 1e9:.2f}s ({event.kind})")
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
        gone = self._away.pop(event.node, None)
        if gone is None and before is not None and before < event.incarnation:
            gone = (now - PROOF_NS, "")  # the agent was restarted before its silence was noticed
        if gone is not None:
            since, how = gone
            self._fault(since, f"{event.node}@{_at(since)}{how}/{_at(max(1000, now - since))}")
        elif before is None and event.node not in self._declared:
            self.adds.append(f"{event.node}@{_at(now)}")

    def end(self) -> None:
        """Add the faults that only the whole record shows. Called after the last line."""
        self._hang_behind_timeouts()
        for node, (since, how) in self._away.items():
            self._fault(since, f"{node}@{_at(since)}{how}")


def measured(graph: RoleGraph, lines: Sequence[Line]) -> tuple[dict[str, WorkloadSpec], list[str]]:
    """Return the workload of each role as measured in a record, and texts about the roles that reported no progress.

    What the record does not show is as the graph declares it.
    """
    found, missing = {}, []
    records = [line for line in lines if isinstance(line, Record)]
    for role in graph.roles:
        if role.kind == "service":
            found[role.name] = _service(role, records)
            continue
        work = _Attempts(role.name, records)
        found[role.name] = work.measured(role.workload)
        if not work.steps_per_ns and work.runs:
            missing.append(f"{role.name} reported no progress: it is played as {found[role.name].steps} steps of 1s")
        elif not work.progress and work.runs:
            missing.append(f"{role.name} reported no progress: its steps are played as its checkpoints tell of them")
    return found, missing


def _service(role: RoleSpec, records: Sequence[Record]) -> WorkloadSpec:
    """Return the workload of a service: its start-up is the median time from the start of an attempt until it is ready.

    If no attempt got ready the declared start-up stays.
    """
    begun, took = {}, []
    for line in records:
        for effect in line.effects:
            if isinstance(effect, StartReplica) and effect.replica.role == role.name:
                begun[effect.replica, effect.attempt] = line.t_ns
        if isinstance(line.event, ev.ReplicaReady) and (key := (line.event.replica, line.event.attempt)) in begun:
            took.append(line.t_ns - begun[key])
    startup = round(statistics.median(took)) if took else role.workload.startup_ns
    return msgspec.structs.replace(role.workload, startup_ns=startup)


class _Attempts:
    """The attempts of one role of tasks in a record, by replica and number of the attempt. Times are ns."""

    def __init__(self, role: str, records: Sequence[Record]) -> None:
        self.runs: dict[tuple[ReplicaId, int], int] = {}  # when each was started
        self.progress: dict[tuple[ReplicaId, int], list[tuple[int, int]]] = {}  # (when, step)
        self._saved: dict[tuple[ReplicaId, int], list[tuple[int, int]]] = {}  # (when, step) of offered checkpoints
        self._lasted: dict[tuple[ReplicaId, int], int] = {}  # how long each attempt took that succeeded
        self._first_suspended: int | None = None  # when workers of the role were first suspended; None: never
        for line in records:
            self._add(role, line)

    def _add(self, role: str, line: Record) -> None:
        for effect in line.effects:
            if isinstance(effect, StartReplica) and effect.replica.role == role:
                self.runs.setdefault((effect.replica, effect.attempt), line.t_ns)
        match line.event:
            case ev.ReplicaProgressed(replica, attempt, step) if replica.role == role:
                self.progress.setdefault((replica, attempt), []).append((line.t_ns, step))
            case ev.CheckpointOffered(replica, attempt, _, _, step) if replica.role == role:
                self._saved.setdefault((replica, attempt), []).append((line.t_ns, step))
            case ev.ReplicaStopped(replica, suspended=True) if replica.role == role and self._first_suspended is None:
                self._first_suspended = line.t_ns
            case ev.ReplicaExited(replica, attempt, None) if replica.role == role and (replica, attempt) in self.runs:
                self._lasted[replica, attempt] = line.t_ns - self.runs[replica, attempt]
            case _:
                pass

    @property
    def _reports(self) -> dict[tuple[ReplicaId, int], list[tuple[int, int]]]:
        """(time, step) pairs by attempt: reported progress, or if the role reported none, offered checkpoints."""
        return self.progress or self._saved

    @property
    def steps_per_ns(self) -> float:
        """Steps per ns over all attempts, each from its first to its last report.

        It is 0.0 if no attempt has reported two different steps.
        """
        reports = [seen for seen in self._reports.values() if seen[-1][1] > seen[0][1]]
        time = sum(seen[-1][0] - seen[0][0] for seen in reports)
        return sum(seen[-1][1] - seen[0][1] for seen in reports) / time if time else 0.0

    def measured(self, declared: WorkloadSpec) -> WorkloadSpec:
        """Return the declared workload with measured steps, step time, start-up and time between checkpoints.

        Without a known pace the workload is that of `_by_length`.
        """
        if not self.steps_per_ns:
            return self._by_length(declared)
        step_ns = max(1, round(1 / self.steps_per_ns))
        first = [self._startup(key, step_ns) for key in self._reports if self._starts_from_saved(key)]
        startup = round(statistics.median(first)) if first else declared.startup_ns
        last = max(seen[-1][1] for seen in self._reports.values()) + self._after_the_last(step_ns)
        gaps = [after - before for seen in self._saved.values() for (before, _), (after, _) in pairwise(seen)]
        every = round(statistics.median(gaps)) if gaps else self._by_loss(step_ns) or declared.checkpoint_every_ns
        return msgspec.structs.replace(
            declared,
            steps=last if self._lasted else max(last, declared.steps),
            step_ns=step_ns,
            startup_ns=startup,
            checkpoint_every_ns=every,
            **INCLUDED,
        )

    def _after_the_last(self, step_ns: int) -> int:
        """Return how many steps a successful attempt did after its last checkpoint, estimated from its length.

        It is 0 if the role reported progress, which then shows the last step.
        """
        if self.progress:
            return 0
        ends = [(self.runs[key] + lasted, key) for key, lasted in self._lasted.items() if key in self._saved]
        return max(((end - self._saved[key][-1][0]) // step_ns for end, key in ends), default=0)

    def _starts_from_saved(self, key: tuple[ReplicaId, int]) -> bool:
        """Return whether the attempt began before any worker of the role was suspended, and its start is recorded.

        Such an attempt starts from a checkpoint or from step 0. Once workers are suspended (R6), fresh ones continue
        from what these have in memory, at a step that the record does not show.
        """
        return key in self.runs and (self._first_suspended is None or self.runs[key] < self._first_suspended)

    def _startup(self, key: tuple[ReplicaId, int], step_ns: int) -> int:
        """Return the time in ns from the start of an attempt to its first step, estimated from its first report.

        The time of the steps since the newest checkpoint, as far as they are known, is taken off.
        """
        begun, (reported, step) = self.runs[key], self._reports[key][0]
        saved = [step for seen in self._saved.values() for when, step in seen if when <= begun]
        before = max(saved, default=0)
        steps = step - before if self._saved or key[1] == 1 else 1  # the first step is unknown
        took = reported - begun
        return took - steps * step_ns if 0 < steps * step_ns <= took else max(0, took - step_ns)

    def _by_loss(self, step_ns: int) -> int | None:
        """Return the time between checkpoints in ns, estimated from the steps that were done again after restarts.

        n such steps on average mean 2n steps between two checkpoints. None if no steps were done again.
        """
        reached, lost = 0, []
        for _, seen in sorted(self.progress.items(), key=lambda item: item[1][0]):
            if seen[0][1] <= reached:
                lost.append(reached - seen[0][1] + 1)
            reached = max(reached, seen[-1][1])
        return 2 * round(statistics.mean(lost)) * step_ns if lost else None

    def _by_length(self, declared: WorkloadSpec) -> WorkloadSpec:
        """Return a workload for a role whose steps are unknown: steps of 1 s, for as long as an attempt took.

        That is the median of the successful attempts. The workload saves nothing, so a restart begins at step 0. If no
        attempt succeeded the declared workload is returned.
        """
        if not self._lasted:
            return declared
        seconds = max(1, round(statistics.median(self._lasted.values()) / SECOND))
        return msgspec.structs.replace(
            declared,
            steps=seconds,
            step_ns=SECOND,
            startup_ns=0,
            checkpoint_every_ns=2 * seconds * SECOND,  # never
            **INCLUDED,
        )
