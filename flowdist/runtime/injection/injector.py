"""The fault plan against real processes. Control is never told: it has to notice.

Here it is decided when a fault is due, whom it hits, and when it is over. What it does to processes is in `blows.py`,
`holding.py` and in the supervisor, who owns them, or in `joined_host.py` where they run on another host; what it does
to connections is in `disturbances.py`, in the controller's process.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from flowdist.control.job.state import JobState, Replica
from flowdist.control.protocol.events import DrainRequested, NodePreempted, ScaleRequested
from flowdist.faults.grammar import (
    ORDERS,
    Fault,
    FaultError,
    Plan,
    added_node,
    check_plan,
    check_targets,
    refuse_fault,
    refuse_misplaced,
    refuse_unsupported,
)
from flowdist.faults.milestones import has_come
from flowdist.faults.rates import Arrivals, check_rates
from flowdist.graph import RoleGraph, parse_duration
from flowdist.record.journal import Record
from flowdist.runtime.injection.link_faults import Direction, Disturb
from flowdist.runtime.injection.remote_faults import RemoteFault, strike, workers_hit
from flowdist.runtime.injection.torn_checkpoint import Tearing, Torn
from flowdist.runtime.processes.holding import Below
from flowdist.runtime.wire.frames import Operation

KINDS = {
    "node": ("kill", "lost", "leave", "preempt", "pause", "partition", "cut-to", "delay", "drop", "add", "drain"),
    "replica": ("kill", "exit", "oom", "hang", "pause", "slow", "torn-checkpoint", "scale"),
    "controller": ("kill", "partition", "cut-to"),
}
NEARLY = 0.7  # how much a name is like another that was meant, of 1
BOTH: tuple[Direction, ...] = ("up", "down")


def check_faults(plan: Plan, graph: RoleGraph, *, has_guests: bool = False) -> None:
    """FaultError for a fault that `run` cannot carry out, or whose target is not there.

    With `has_guests` other hosts may come, of any name: what is named like nothing else is one of them.
    """
    if has_guests:
        graph = _with_guests(plan, graph)
    nodes = [node.name for node in graph.cluster.nodes] + plan.new_nodes

    def check(faults: Sequence[Fault]) -> None:
        for fault in faults:
            _refuse_what_is_not_real(fault)
        refuse_unsupported(faults, KINDS, "flowdist run")
        check_targets(faults, graph, nodes)
        refuse_misplaced(faults, KINDS, nodes)

    check(plan.faults)
    check_plan(plan, graph)
    check_rates(plan.rates, graph, nodes, check)


def _with_guests(plan: Plan, graph: RoleGraph) -> RoleGraph:
    """The graph with a node for each name that may be a host's. One that is nearly a role's is a slip of the pen."""
    if plan.new_nodes or plan.rates:
        message = "--add and --rate are for one machine: what hosts will come is not known beforehand"
        raise FaultError(message, help="type flowdist join where a host is to come; name hosts and roles in --fail")
    known = [*(role.name for role in graph.roles), *(node.name for node in graph.cluster.nodes), "all", "controller"]
    targets = [fault.target for fault in plan.faults if fault.replica is None and fault.label is None]
    named = [*targets, *(other for fault in plan.faults for other in fault.others), *(d.node for d in plan.drains)]
    guests = [name for name in dict.fromkeys(named) if not difflib.get_close_matches(name, known, 1, NEARLY)]
    nodes = (*graph.cluster.nodes, *(added_node(name, graph) for name in guests))
    return msgspec.structs.replace(graph, cluster=msgspec.structs.replace(graph.cluster, nodes=nodes))


def _refuse_what_is_not_real(fault: Fault) -> None:
    """What a simulator can do and one machine cannot, with what comes next to it."""
    if fault.kind == "disk-full":
        message = "run cannot fill the disk under one role: the disk is that of the whole machine"
        help = "simulate can; or set checkpoint_dir= to a small file system of its own and fill that"
        refuse_fault(fault, message, help)
    others = [name for name in fault.others if name != "controller"]
    if others and fault.target != "controller":
        message = f"run cannot cut {fault.target} off from {others[0]}: their workers talk over this machine's loopback"
        refuse_fault(fault, message, f"simulate can; or write {fault.kind}=controller, or pause")
    if fault.kind == "slow" and float(fault.arg.rstrip("x")) <= 1:
        refuse_fault(fault, "nobody can make a real process faster", "write slow=2x or more")


class ProcessControl(Protocol):
    """What the injector needs of the supervisor, who owns the processes."""

    def kill_node(self, name: str, back_after_ns: int | None) -> None: ...
    def send_away(self, name: str, back_after_ns: int | None) -> None: ...
    def add_node(self, name: str) -> None: ...
    def guardian_of(self, name: str) -> int | None: ...
    def kill_controller(self) -> None: ...
    def disturb(self, wrong: Disturb) -> None: ...
    def heal(self, node: str, why: str) -> None: ...
    def operate(self, event: Operation) -> None: ...
    def note_fault(self, spec: str, target: str) -> None: ...
    def warn(self, text: str) -> None: ...
    def is_far(self, node: str) -> bool: ...
    def strike_far(self, blow: RemoteFault) -> None: ...


class Injector:
    """Decides from the records when a fault, or an order of the operator, is due.

    Args:
        seed: Of the rates: the faults that `simulate` would draw.
        since_ns: Time of the job when it is resumed: what was drawn for before that is past.
    """

    def __init__(
        self, plan: Plan, graph: RoleGraph, run_dir: Path, hands: ProcessControl, *, seed: int = 0, since_ns: int = 0
    ) -> None:
        self._run_dir, self._hands = run_dir, hands
        self._tearing = Tearing(graph, Path(graph.checkpoint_dir or run_dir / "checkpoints"))
        nodes = [*graph.cluster.nodes, *(added_node(name, graph) for name in plan.new_nodes)]
        self._labels = {node.name: node.labels for node in nodes}
        self._arrivals = Arrivals(plan.rates, graph, list(self._labels), seed)
        list(self._arrivals.until(since_ns))
        self._waiting: list[Fault] = []  # for their event
        self._due: list[tuple[int, Fault]] = []
        self._acts: list[tuple[int, Callable[[], None]]] = []  # orders of the operator, and ends of notices
        self._undos: list[tuple[int | None, Callable[[], None]]] = []  # when it is over; None: with the job
        self.fired: dict[str, None] = {}
        self._faults = list(plan.faults)
        for scale in plan.scales:
            self._order(scale.at_ns, ScaleRequested(scale.role, scale.replicas))
        for drain in plan.drains:
            self._order(drain.at_ns, DrainRequested(drain.node))
        for add in plan.adds:
            self._acts.append((add.at_ns, lambda name=add.node: hands.add_node(name)))  # type: ignore[misc]
        for fault in plan.faults:
            if fault.when.at_ns is not None:
                self._due.append((fault.when.at_ns + fault.offset_ns, fault))
            elif fault.when.every_ns is not None:
                self._due.append((fault.when.every_ns + fault.offset_ns, fault))
            else:
                self._waiting.append(fault)

    def _order(self, at_ns: int, event: Operation) -> None:
        self._acts.append((at_ns, lambda: self._hands.operate(event)))

    def next_ns(self) -> int | None:
        """When the next thing is due, in time of the job."""
        times = [at for at, _ in [*self._due, *self._acts, *self._undos]]
        return min((at for at in [*times, self._arrivals.next_ns()] if at is not None), default=None)

    def hear(self, job: JobState, record: Record) -> None:
        """A record was written: a fault may wait for what it says."""
        self._tearing.hear(record)
        for fault in list(self._waiting):
            when = fault.when
            if when.event is not None and has_come(job, record.event, when.event, when.role, when.number):
                self._waiting.remove(fault)
                self._due.append((record.t_ns + fault.offset_ns, fault))

    def fire(self, job: JobState, now: int) -> None:
        """Carry out what is due, and end what is over."""
        self._undo(now)
        self._tell_torn(self._tearing.tear(now))
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

    def let_go(self) -> None:
        """The job is over: nobody is held up any longer, so that everybody can end in order."""
        self._undo(None)
        self._tell_torn(self._tearing.give_up())

    def never_fired(self) -> list[Fault]:
        return [fault for fault in self._faults if fault.spec not in self.fired]

    def _undo(self, now: int | None) -> None:
        """What is over by now; with None everything is."""
        over = [undo for undo in self._undos if now is None or (undo[0] is not None and undo[0] <= now)]
        for undo in over:
            self._undos.remove(undo)
            undo[1]()

    def _carry_out(self, job: JobState, fault: Fault, now: int) -> None:
        over_ns = now + fault.duration_ns if fault.duration_ns is not None else None
        if fault.target == "controller":
            self._hit_controller(fault, over_ns)
        elif fault.kind in ORDERS:
            self._obey(fault, job)
        elif nodes := self._nodes_hit(fault, job):
            for name in nodes:
                if name in job.nodes and job.nodes[name].usable:
                    self._hit_node(fault, name, now, over_ns)
        elif fault.kind == "torn-checkpoint":
            self._tearing.begin(fault, now)
            self._tell_torn(self._tearing.tear(now))
        else:
            for replica in _targets(job, fault):
                self._hit_replica(fault, replica, over_ns)

    def _obey(self, fault: Fault, job: JobState) -> None:
        """What the operator does, or the cluster."""
        self._tell(fault, fault.target)
        if fault.kind == "scale":
            self._hands.operate(ScaleRequested(fault.target, int(fault.arg)))
        for name in self._nodes_hit(fault, job):
            if fault.kind == "drain":
                self._hands.operate(DrainRequested(name))
            elif fault.kind == "add":
                self._hands.add_node(name)

    def _nodes_hit(self, fault: Fault, job: JobState) -> list[str]:
        labels = self._labels | {name: node.spec.labels for name, node in job.nodes.items()}
        return [name for name, own in labels.items() if name == fault.target or fault.label in own]

    def _hit_controller(self, fault: Fault, over_ns: int | None) -> None:
        if fault.kind == "kill":
            self._hands.kill_controller()
        self._tell(fault, "controller")
        for name in fault.others:
            self._disturb(Disturb(name, fault.spec, cut=("down",) if fault.kind == "cut-to" else BOTH), over_ns)

    def _hit_node(self, fault: Fault, name: str, now: int, over_ns: int | None) -> None:
        self._tell(fault, name)
        match fault.kind:
            case "preempt":
                notice_ns = parse_duration(fault.arg)
                self._hands.operate(NodePreempted(name, notice_ns))
                self._acts.append((now + notice_ns, lambda: self._hands.kill_node(name, fault.duration_ns)))
            case "leave":
                self._hands.send_away(name, fault.duration_ns)
            case "pause" if self._hands.is_far(name):
                self._hands.strike_far(RemoteFault(name, "pause", duration_ns=fault.duration_ns))
            case "pause":
                guardian = self._hands.guardian_of(name)
                if guardian is not None:
                    self._hold(Below(guardian), over_ns)
            case "lost" | "partition":
                self._disturb(Disturb(name, fault.spec, cut=BOTH), over_ns)
            case "cut-to":
                self._disturb(Disturb(name, fault.spec, cut=("up",)), over_ns)
            case "delay":
                self._disturb(Disturb(name, fault.spec, delay_ns=parse_duration(fault.arg)), over_ns)
            case "drop":
                self._disturb(Disturb(name, fault.spec, loss=float(fault.arg)), over_ns)
            case _:
                self._hands.kill_node(name, fault.duration_ns)

    def _disturb(self, wrong: Disturb, over_ns: int | None) -> None:
        self._hands.disturb(wrong)
        self._undos.append((over_ns, lambda: self._hands.heal(wrong.node, wrong.why)))

    def _hold(self, held: Below, over_ns: int | None) -> None:
        held.stop()
        self._undos.append((over_ns, held.go_on))

    def _hit_replica(self, fault: Fault, replica: Replica, over_ns: int | None) -> None:
        assert replica.node is not None
        what = (fault.kind, fault.arg, fault.duration_ns)
        blow = RemoteFault(replica.node, *what, replica.id, replica.attempt, fault.local_rank)
        if self._hands.is_far(replica.node):
            self._tell(fault, blow.target)
            self._hands.strike_far(blow)
            return
        for folder in workers_hit(self._run_dir, blow):
            self._tell(fault, str(folder.relative_to(self._run_dir)))
            if (held := strike(folder, blow)) is not None:  # for good, if it hangs: its duration would say nothing
                self._undos.append((over_ns if fault.kind != "hang" else None, held.go_on))

    def _tell_torn(self, tried: list[Torn]) -> None:
        for fault, pointer, file in tried:
            if file is not None:
                self._tell(fault, str(file))
            else:
                what = f"nothing is torn: {pointer} has not come to name the checkpoint that was committed last"
                self._hands.warn(f"fault {fault.spec}: {what}")

    def _tell(self, fault: Fault, target: str) -> None:
        self.fired[fault.spec] = None
        self._hands.note_fault(fault.spec, target)


def _targets(job: JobState, fault: Fault) -> Iterator[Replica]:
    """The replicas that run and are meant."""
    for replica in job.replicas.values():
        is_meant = fault.target in ("all", replica.id.role) or fault.replica == tuple(replica.id)
        if is_meant and replica.phase in ("running", "ready"):
            yield replica
