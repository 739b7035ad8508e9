"""The injector of a fault plan: it decides when a fault is due, what it hits, and when it is over.

Faults of workers are in `remote_faults`, faults of nodes in the supervisor, which owns their processes, or on the
joined host where they run. Faults of connections are in `link_faults`, in the controller's process.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from flowdist.control.job.state import JobState, Replica
from flowdist.control.protocol.events import DrainRequested, NodePreempted, ScaleRequested
from flowdist.faults.grammar import Fault, FaultError, Plan
from flowdist.faults.kinds import carried_out, having
from flowdist.faults.milestones import has_come
from flowdist.faults.rates import Arrivals, check_rates
from flowdist.faults.targets import (
    added_node,
    check_plan,
    check_targets,
    refuse_fault,
    refuse_misplaced,
    refuse_unsupported,
)
from flowdist.graph import RoleGraph, parse_duration
from flowdist.record.journal import Record
from flowdist.runtime.injection.remote_faults import apply, workers_hit
from flowdist.runtime.injection.torn_checkpoint import TornCheckpoints
from flowdist.runtime.processes.pausing import PausedNode
from flowdist.runtime.wire.frames import Direction, LinkFault, Operation, RemoteFault

CAN = carried_out("real")
SIMILARITY_MIN = 0.7  # of 1: a name this similar to a known one counts as a misspelling of that one
BOTH: tuple[Direction, ...] = ("up", "down")


def check_faults(plan: Plan, graph: RoleGraph, *, has_guests: bool = False) -> None:
    """Check that `flowdist run` can carry out every fault and order of a plan; FaultError if not.

    If other hosts may join (`has_guests`), their nodes may have any name: an unknown target is accepted unless it looks
    like a misspelling of a known name.
    """
    if has_guests:
        graph = _with_guests(plan, graph)
    nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes

    def check(faults: Sequence[Fault]) -> None:
        for fault in faults:
            _refuse_impossible(fault)
        refuse_unsupported(faults, CAN, "flowdist run")
        check_targets(faults, graph, nodes)
        refuse_misplaced(faults, CAN, nodes)

    check(plan.faults)
    check_plan(plan, graph)
    check_rates(plan.rates, graph, nodes, check)


def _with_guests(plan: Plan, graph: RoleGraph) -> RoleGraph:
    """Return the graph with a node for each unknown name in the plan, unless it is similar to a known one.

    FaultError if the plan adds nodes or has rates, which need nodes that are known beforehand.
    """
    if plan.new_nodes or plan.rates:
        message = "--add and --rate are for one machine: what hosts will come is not known beforehand"
        raise FaultError(message, help="type flowdist join where a host is to come; name hosts and roles in --fail")
    known = [*(role.name for role in graph.roles), *(node.name for node in graph.cluster.nodes), "all", "controller"]
    targets = [fault.target for fault in plan.faults if fault.replica is None and fault.label is None]
    named = [*targets, *(other for fault in plan.faults for other in fault.others), *(d.node for d in plan.drains)]
    guests = [name for name in dict.fromkeys(named) if not difflib.get_close_matches(name, known, 1, SIMILARITY_MIN)]
    nodes = (*graph.cluster.nodes, *(added_node(name, graph) for name in guests))
    return msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=nodes))


def _refuse_impossible(fault: Fault) -> None:
    """Raise FaultError if only the simulator can carry out the fault; its help names the closest one that `run` can."""
    if fault.kind == "disk-full":
        message = "run cannot fill the disk under one role: the disk is that of the whole machine"
        help = "simulate can; or set checkpoint_dir= to a small file system of its own and fill that"
        refuse_fault(fault, message, help)
    others = [name for name in fault.others if name != "controller"]
    if others and fault.target != "controller":
        message = f"run cannot cut {fault.target} off from {others[0]}: their workers talk over this machine's loopback"
        refuse_fault(fault, message, f"simulate can; or write {fault.kind}=controller, or pause")
    if fault.kind == "slow" and float(fault.arg.rstrip("x")) <= 1:
        refuse_fault(fault, "a real process cannot be made faster", "write slow=2x or more")


class ProcessControl(Protocol):
    """The actions that the injector needs of the supervisor, which owns the processes."""

    def kill_node(self, name: str, back_after_ns: int | None) -> None:
        """Kill every process of the node, and start the node again after so many ns; None: never."""

    def make_node_leave(self, name: str, back_after_ns: int | None) -> None:
        """Have the node leave the job in order, and start the node again after so many ns; None: never."""

    def add_node(self, name: str) -> None:
        """Start a node that the plan adds to the job."""

    def guardian_of(self, name: str) -> int | None:
        """Return the process id of the node's guardian; None if it does not run on this host."""

    def kill_controller(self) -> None:
        """Kill the controller process."""

    def add_link_fault(self, fault: LinkFault) -> None:
        """Begin a fault of the connection between the controller and the agent of the fault's node."""

    def heal_link(self, node: str, why: str) -> None:
        """End the LinkFault with this `node` and `why`; do nothing if there is none."""

    def operate(self, event: Operation) -> None:
        """Send an event to the controller, as if an operator had given the order."""

    def note_fault(self, spec: str, target: str) -> None:
        """Have a line written into the journal that the fault `spec` has hit `target`."""

    def warn(self, text: str) -> None:
        """Show the user a warning."""

    def is_remote(self, node: str) -> bool:
        """Return whether the node is on another host."""

    def apply_remotely(self, fault: RemoteFault) -> None:
        """Send the fault to the host of its node, which carries it out and ends it."""


class Injector:
    """Injector of the faults of one plan, and giver of its orders of the operator, by `control`.

    The supervisor passes each new record to `observe`, and calls `fire` at `next_ns` or earlier. The `seed` draws the
    same random faults as in `flowdist simulate`; those from before `since_ns`, the job's time at a resume, are left
    out.
    """

    def __init__(
        self, plan: Plan, graph: RoleGraph, run_dir: Path, control: ProcessControl, *, seed: int = 0, since_ns: int = 0
    ) -> None:
        self._run_dir, self._control = run_dir, control
        checkpoints = Path(graph.checkpoint_dir or run_dir / "checkpoints")
        self._torn_checkpoints = TornCheckpoints(graph, checkpoints, self._note, control.warn)
        nodes = [*graph.cluster.nodes, *(added_node(name, graph) for name in plan.new_nodes)]
        self._labels = {node.name: node.labels for node in nodes}
        self._arrivals = Arrivals(plan.rates, graph, list(self._labels), seed, plan.starts)
        list(self._arrivals.until(since_ns))
        self._waiting: list[Fault] = []  # faults that wait for a milestone
        self._due: list[tuple[int, Fault]] = []  # faults whose time is known, with that time
        self._acts: list[tuple[int, Callable[[], None]]] = []  # orders of the operator, and ends of preemption notices
        self._undos: list[tuple[int | None, Callable[[], None]]] = []  # each with the end of the fault; None: the job's
        self.fired: dict[str, None] = {}  # faults that have hit something, as the user wrote them
        self._faults = list(plan.faults)
        for scale in plan.scales:
            self._acts.append((scale.at_ns, partial(control.operate, ScaleRequested(scale.role, scale.replicas))))
        for drain in plan.drains:
            self._acts.append((drain.at_ns, partial(control.operate, DrainRequested(drain.node))))
        for add in plan.adds:
            self._acts.append((add.at_ns, partial(control.add_node, add.node)))
        for fault in plan.faults:
            first_ns = fault.when.at_ns if fault.when.at_ns is not None else fault.when.every_ns
            if first_ns is None:
                self._waiting.append(fault)
            else:
                self._due.append((first_ns + fault.offset_ns, fault))

    def next_ns(self) -> int | None:
        """Return the time, in ns of the job, at which `fire` has to be called next; None if no time is known."""
        times = [at for at, _ in [*self._due, *self._acts, *self._undos]]
        return min((at for at in [*times, self._arrivals.next_ns()] if at is not None), default=None)

    def observe(self, job: JobState, record: Record) -> None:
        """Make each fault due that waits for the milestone which the event of a new record has reached.

        Checkpoints that the record accepts are noted for torn-checkpoint faults.
        """
        self._torn_checkpoints.observe(record)
        for fault in list(self._waiting):
            when = fault.when
            if when.event is not None and has_come(job, record.event, when.event, when.role, when.number):
                self._waiting.remove(fault)
                self._due.append((record.t_ns + fault.offset_ns, fault))

    def fire(self, job: JobState, now: int) -> None:
        """End the faults whose duration is over by `now`, and carry out the faults and orders that are due by then."""
        self._undo(now)
        self._torn_checkpoints.tear(now)
        for at, act in sorted(self._acts, key=lambda due: due[0]):
            if at <= now:
                self._acts.remove((at, act))
                act()
        for fault in list(self._arrivals.until(now)):
            self._carry_out(job, fault, now)
        for at, fault in sorted(self._due, key=lambda due: due[0]):
            if at <= now:
                self._due.remove((at, fault))
                if fault.when.every_ns is not None:
                    self._due.append((at + fault.when.every_ns, fault))
                self._carry_out(job, fault, now)

    def end_all(self) -> None:
        """End all faults that are in force, since the job is over: a paused process could not end in order."""
        self._undo(None)
        self._torn_checkpoints.give_up()

    def never_fired(self) -> list[Fault]:
        """Return the faults of the plan that have hit nothing so far. Faults of a rate are not among them."""
        return [fault for fault in self._faults if fault.spec not in self.fired]

    def _undo(self, now: int | None) -> None:
        """End the faults whose duration is over by `now`; None: all faults."""
        over = [undo for undo in self._undos if now is None or (undo[0] is not None and undo[0] <= now)]
        for undo in over:
            self._undos.remove(undo)
            undo[1]()

    def _carry_out(self, job: JobState, fault: Fault, now: int) -> None:
        over_ns = now + fault.duration_ns if fault.duration_ns is not None else None
        if fault.target == "controller":
            self._hit_controller(fault, over_ns)
        elif fault.kind in having("order"):
            self._carry_out_order(fault, job)
        elif nodes := self._nodes_hit(fault, job):
            for name in nodes:
                if name in job.nodes and job.nodes[name].usable:
                    self._hit_node(fault, name, now, over_ns)
        elif fault.kind == "torn-checkpoint":
            self._torn_checkpoints.begin(fault, now)
            self._torn_checkpoints.tear(now)
        else:
            for replica in _targets(job, fault):
                self._hit_replica(fault, replica, over_ns)

    def _carry_out_order(self, fault: Fault, job: JobState) -> None:
        """Carry out a `scale` or `drain`, which is an order of the operator, or an `add`, which starts a node."""
        self._note(fault, fault.target)
        if fault.kind == "scale":
            self._control.operate(ScaleRequested(fault.target, int(fault.arg)))
        for name in self._nodes_hit(fault, job):
            if fault.kind == "drain":
                self._control.operate(DrainRequested(name))
            elif fault.kind == "add":
                self._control.add_node(name)

    def _nodes_hit(self, fault: Fault, job: JobState) -> list[str]:
        labels = self._labels | {name: node.spec.labels for name, node in job.nodes.items()}
        return [name for name, own in labels.items() if name == fault.target or fault.label in own]

    def _hit_controller(self, fault: Fault, over_ns: int | None) -> None:
        if fault.kind == "kill":
            self._control.kill_controller()
        self._note(fault, "controller")
        for name in fault.others:
            cut: tuple[Direction, ...] = ("down",) if fault.kind == "cut-to" else BOTH
            self._add_link_fault(LinkFault(name, fault.spec, cut=cut), over_ns)

    def _hit_node(self, fault: Fault, name: str, now: int, over_ns: int | None) -> None:
        self._note(fault, name)
        match fault.kind:
            case "preempt":
                notice_ns = parse_duration(fault.arg)
                self._control.operate(NodePreempted(name, notice_ns))
                self._acts.append((now + notice_ns, lambda: self._control.kill_node(name, fault.duration_ns)))
            case "leave":
                self._control.make_node_leave(name, fault.duration_ns)
            case "pause" if self._control.is_remote(name):
                self._control.apply_remotely(RemoteFault(name, "pause", duration_ns=fault.duration_ns))
            case "pause":
                if (guardian := self._control.guardian_of(name)) is not None:
                    node = PausedNode(guardian)
                    node.pause()
                    self._undos.append((over_ns, node.resume))
            case "lost" | "partition":
                self._add_link_fault(LinkFault(name, fault.spec, cut=BOTH), over_ns)
            case "cut-to":
                self._add_link_fault(LinkFault(name, fault.spec, cut=("up",)), over_ns)
            case "delay":
                self._add_link_fault(LinkFault(name, fault.spec, delay_ns=parse_duration(fault.arg)), over_ns)
            case "drop":
                self._add_link_fault(LinkFault(name, fault.spec, loss=float(fault.arg)), over_ns)
            case "kill":
                self._control.kill_node(name, fault.duration_ns)
            case _:
                raise AssertionError(f"nothing carries out {fault.kind} of a node")

    def _add_link_fault(self, fault: LinkFault, over_ns: int | None) -> None:
        self._control.add_link_fault(fault)
        self._undos.append((over_ns, lambda: self._control.heal_link(fault.node, fault.why)))

    def _hit_replica(self, fault: Fault, replica: Replica, over_ns: int | None) -> None:
        assert replica.node is not None
        what = (fault.kind, fault.arg, fault.duration_ns)
        remote = RemoteFault(replica.node, *what, replica.id, replica.attempt, fault.local_rank)
        if self._control.is_remote(replica.node):
            self._note(fault, remote.target)
            self._control.apply_remotely(remote)
            return
        for folder in workers_hit(self._run_dir, remote):
            self._note(fault, str(folder.relative_to(self._run_dir)))
            if (paused := apply(folder, remote)) is not None:  # a hang lasts until the worker is killed
                self._undos.append((over_ns if fault.kind != "hang" else None, paused.resume))

    def _note(self, fault: Fault, target: str) -> None:
        self.fired[fault.spec] = None
        self._control.note_fault(fault.spec, target)


def _targets(job: JobState, fault: Fault) -> Iterator[Replica]:
    """Yield the replicas that a fault targets and that run now."""
    for replica in job.replicas.values():
        is_target = fault.target in ("all", replica.id.role) or fault.replica == tuple(replica.id)
        if is_target and replica.phase in ("running", "ready"):
            yield replica
