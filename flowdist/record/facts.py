"""What a record says of a job, from its events and effects alone: who runs, where, in which generation.

The controller's state is never asked, so that what is found here can be held against it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import FinishJob, Notify, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec
from flowdist.record.journal import Header, Record


@dataclass(slots=True)
class Run:
    """One attempt that was started and is not known to have ended."""

    start: StartReplica
    is_up: bool = False  # ReplicaStarted was heard
    is_ready: bool = False
    is_told_to_stop: bool = False
    is_told_to_end: bool = False  # and not in place: workers of it that have left their generation do not wait
    is_elastic: bool = False  # it has said that it can leave its generation in place
    step: int = -1
    told_step: int | None = None  # its answer to AskStep
    has_told: bool = False
    stalled: str = ""


class Facts:
    """`note` takes a record in; the properties hold as after it. `began` is what ran when its effects were decided."""

    def __init__(self, header: Header) -> None:
        self.graph: RoleGraph = header.graph
        self.specs: dict[str, RoleSpec] = {spec.name: spec for spec in header.graph.roles}
        self.expected: dict[NodeName, None] = dict.fromkeys(header.known_nodes)
        self.first_join_ns: int | None = None
        self.nodes: dict[NodeName, NodeSpec] = {}  # that are up
        self.incarnations: dict[NodeName, int] = {}
        self.runs: dict[ReplicaId, Run] = {}
        self.suspended: dict[ReplicaId, StartReplica] = {}  # have left that attempt in place; nobody told them to end
        self.attempts: dict[ReplicaId, int] = {}
        self.done: dict[ReplicaId, int] = {}  # succeeded, with the generation that it did so in
        self.world_done: dict[WorldName, dict[ReplicaId, int]] = {}  # members that have succeeded, with the time
        self.generations: dict[WorldName, int] = {}
        self.ports: dict[tuple[WorldName, int], int] = {}
        self.since: dict[WorldName, dict[ReplicaId, int]] = {}  # members, with the generation that they came in
        self.formed_ns: dict[WorldName, int] = {}
        self.scaled: dict[str, None] = {}  # roles that the operator has scaled since their world formed
        self.epoch = header.epoch
        self.seats: dict[ReplicaId, NodeName] = {}  # where it ran last
        self.is_calm = True  # no node was lost or is to be left, and nothing was ignored
        self.stuck: list[StartReplica] = []  # outlive SIGKILL
        self.bad_gpus: dict[NodeName, dict[int, None]] = {}  # by number, since the node has joined
        self.last_ns = -1  # of the record before
        self.quiet_until_ns = -1  # until then a controller that took over expects nothing of anybody
        self.overdue: dict[NodeName, None] = {}  # nodes that may be lost, and are not known to be
        self.is_ending = False
        self.is_over = False

    def world_of(self, replica: ReplicaId) -> WorldName:
        joint = self.graph.world_of(replica.role)
        if joint is not None:
            return joint.name
        return replica.role if self.specs[replica.role].gang else str(replica)

    def roles_in(self, world: WorldName) -> list[RoleSpec]:
        return [
            spec for spec in self.graph.roles if self.world_of(ReplicaId(spec.name, 0)).split("/")[0] == _own(world)
        ]

    def members(self, world: WorldName) -> list[Run]:
        return [run for run in self.runs.values() if run.start.world == world]

    def current(self, replica: ReplicaId, attempt: int) -> Run | None:
        run = self.runs.get(replica)
        return run if run is not None and run.start.attempt == attempt else None

    def hear(self, line: Record) -> list[Run]:
        """What the event says. Returns the attempts that have ended by it."""
        before = dict(self.runs)
        self._hear(line)
        return [run for replica, run in before.items() if self.runs.get(replica) is not run]

    def _hear(self, line: Record) -> None:
        event = line.event
        match event:
            case ev.NodeJoined():
                self._joined(line, event)
                self.overdue.pop(event.node, None)
            case ev.NodeSuspected():
                self.overdue[event.node] = None
            case ev.NodeHeard():
                self.overdue.pop(event.node, None)
            case ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
                self.expected.pop(event.node, None)
                self._lost(event.node)
                self.overdue.pop(event.node, None)
            case ev.StoreOpened():
                self.ports[event.world, event.generation] = event.port
            case ev.ControllerStarted():
                options = self.graph.options
                self.quiet_until_ns = line.t_ns + options.lease_ns + options.lease_margin_ns
            case ev.DrainRequested() | ev.CordonRequested() | ev.NodePreempted():
                self.is_calm = False
            case ev.GpuFailed():
                self._bad(event.node, event.gpu, event.xid)
            case ev.ScaleRequested():
                self.scaled[event.role] = None
            case ev.ReplicaExited() | ev.ReplicaStopped() | ev.ReplicaUnkillable():
                run = self.current(event.replica, event.attempt)
                if run is not None:
                    self._ended(line, run, event)
            case (
                ev.ReplicaStarted()
                | ev.ReplicaReady()
                | ev.ReplicaProgressed()
                | ev.ReplicaElastic()
                | ev.ReplicaStalled()
                | ev.ReplicaRevived()
                | ev.StepTold()
            ):
                run = self.current(event.replica, event.attempt)
                if run is not None:
                    self._told(line, run, event)
            case _:
                pass

    def _told(
        self,
        line: Record,
        run: Run,
        event: ev.ReplicaStarted
        | ev.ReplicaReady
        | ev.ReplicaProgressed
        | ev.ReplicaElastic
        | ev.ReplicaStalled
        | ev.ReplicaRevived
        | ev.StepTold,
    ) -> None:
        match event:
            case ev.ReplicaStarted():
                self._up(line, run)
            case ev.ReplicaReady():
                run.is_ready = True
            case ev.ReplicaProgressed():
                run.step = event.step
            case ev.ReplicaElastic():
                run.is_elastic = True
            case ev.ReplicaStalled():
                if not run.is_told_to_stop:
                    run.stalled, run.step = event.by, max(run.step, event.step)
            case ev.ReplicaRevived():
                run.stalled = ""
            case ev.StepTold():
                run.told_step, run.has_told = event.step, True

    def _up(self, line: Record, run: Run) -> None:
        if run.is_up:
            return
        run.is_up = True
        world = run.start.world
        members = self.members(world)
        if all(member.is_up for member in members) and not any(member.is_told_to_stop for member in members):
            self.formed_ns[world] = line.t_ns

    def _ended(
        self, line: Record, run: Run, event: ev.ReplicaExited | ev.ReplicaStopped | ev.ReplicaUnkillable
    ) -> None:
        replica, world = run.start.replica, run.start.world
        del self.runs[replica]
        if not isinstance(event, ev.ReplicaUnkillable) and event.suspended and not run.is_told_to_end:
            self.suspended[replica] = run.start
        if isinstance(event, ev.ReplicaUnkillable):
            self.stuck.append(run.start)
            self.is_calm = False
            self.nodes.pop(run.start.node, None)
            for other in self.runs.values():
                if other.start.node == run.start.node and not other.is_told_to_stop:
                    self.since.get(other.start.world, {}).pop(other.start.replica, None)
        is_success = isinstance(event, ev.ReplicaExited) and event.kind is None
        if is_success and self.specs[replica.role].kind == "task":
            self.done[replica] = run.start.generation
            self.world_done.setdefault(world, {})[replica] = line.t_ns
        elif not (isinstance(event, ev.ReplicaStopped) and run.is_told_to_stop):
            self.since.get(world, {}).pop(replica, None)

    def _joined(self, line: Record, event: ev.NodeJoined) -> None:
        before = self.incarnations.get(event.node, 0)
        if event.incarnation < before:
            return
        if self.first_join_ns is None:
            self.first_join_ns = line.t_ns
        self.expected.pop(event.node, None)
        if event.incarnation != before or event.node not in self.nodes:
            self._lost(event.node)
            self.nodes[event.node], self.incarnations[event.node] = event.spec, event.incarnation
            self.bad_gpus[event.node] = {gpu: None for gpu, _ in event.bad_gpus}
            return
        for gpu, _ in event.bad_gpus:
            self._bad(event.node, gpu, 0)
        items = {(item.replica, item.attempt): item for item in event.inventory}
        again = {effect.replica for effect in line.effects if isinstance(effect, StartReplica)}
        for replica, run in list(self.runs.items()):
            if run.start.node != event.node:
                continue
            item = items.get((replica, run.start.attempt))
            if item is not None:
                self._found(line, run, item)
            elif replica not in again:
                del self.runs[replica]

    def _found(self, line: Record, run: Run, item: ev.InventoryItem) -> None:
        """Note what an agent that has connected again reports of an attempt."""
        replica, attempt = run.start.replica, run.start.attempt
        if item.phase in ("running", "ready"):
            self._up(line, run)
            run.is_ready = run.is_ready or item.phase == "ready"
        elif item.exited is not None:
            self._ended(line, run, item.exited)
        elif item.phase in ("suspended", "stopped"):
            self._ended(line, run, ev.ReplicaStopped(replica, attempt, suspended=item.phase == "suspended"))

    def _bad(self, node: NodeName, gpu: int, xid: int) -> None:
        """Whoever has it will be gone, and counts as new when it is back."""
        if xid in PROGRAM_ERRORS or node not in self.nodes or gpu in self.bad_gpus.get(node, ()):
            return
        self.is_calm = False
        self.bad_gpus.setdefault(node, {})[gpu] = None
        for replica, run in self.runs.items():
            if run.start.node == node and gpu in run.start.gpus and not run.is_told_to_stop:
                self.since.get(run.start.world, {}).pop(replica, None)

    def _lost(self, node: NodeName) -> None:
        if self.nodes.pop(node, None) is not None:
            self.is_calm = False
        self.suspended = {replica: start for replica, start in self.suspended.items() if start.node != node}
        for replica, run in list(self.runs.items()):
            if run.start.node == node:
                del self.runs[replica]
                self.since.get(run.start.world, {}).pop(replica, None)

    def follow(self, line: Record) -> None:
        """What the effects make of it."""
        self.last_ns = line.t_ns
        for role, index in re.findall(r"(?:^|; |: )(\S+)/(\d+) failed on ", line.reason):
            failed = ReplicaId(role, int(index))  # also by a verdict: it hangs, or it is not ready in time
            self.since.get(self.world_of(failed), {}).pop(failed, None)
        starts = [effect for effect in line.effects if isinstance(effect, StartReplica)]
        for world in dict.fromkeys(
            start.world for start in starts if self.attempts.get(start.replica) != start.attempt
        ):
            self._began(world, [start for start in starts if start.world == world])
        for effect in line.effects:
            match effect:
                case OpenStore():
                    self.generations[effect.world] = effect.generation
                case StopReplica():
                    self.told_to_stop(effect)
                case FinishJob():
                    self.is_over = True
                case Notify():
                    self.is_calm = self.is_calm and "; ignored: " not in effect.text
                    self.is_ending = self.is_ending or effect.text.startswith(ENDINGS)
                case _:
                    pass

    def told_to_stop(self, effect: StopReplica) -> None:
        run, waits = self.current(effect.replica, effect.attempt), self.suspended.get(effect.replica)
        if waits is not None and waits.attempt == effect.attempt:
            del self.suspended[effect.replica]
        if run is not None:
            run.is_told_to_stop = True
            run.is_told_to_end = run.is_told_to_end or not effect.in_place
            self.formed_ns.pop(run.start.world, None)

    def _began(self, world: WorldName, starts: list[StartReplica]) -> None:
        before = self.since.get(world, {})
        generation = starts[0].generation
        self.since[world] = {start.replica: before.get(start.replica, generation) for start in starts}
        self.world_done[world] = {}
        self.formed_ns.pop(world, None)
        for spec in self.roles_in(world):
            self.scaled.pop(spec.name, None)
        for start in starts:
            self.suspended.pop(start.replica, None)
            self.runs[start.replica] = Run(start)
            self.seats[start.replica] = start.node
            self.attempts[start.replica] = start.attempt
            self.done.pop(start.replica, None)


PROGRAM_ERRORS = (13, 31, 43, 45, 68, 109)  # Xids after which the GPU is as good as before
ENDINGS = ("the job has succeeded", "the job fails", "the job is cancelled")


def _own(world: WorldName) -> str:
    return world.split("/")[0]
