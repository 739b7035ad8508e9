"""Facts of a job from the events and effects of its record alone: the attempts that run, their nodes and generations.

This module never asks the state of the controller, so that `restart_rules` can judge the controller by these facts.
"""

from __future__ import annotations

from dataclasses import dataclass

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, FinishJob, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId, WorldName
from flowdist.graph import NodeSpec, RoleGraph, RoleSpec
from flowdist.record.journal import Header, Record
from tests.proofs.judge.phrases import ENDINGS, FAILED, IGNORED


@dataclass(slots=True)
class Run:
    """One attempt of a replica that was ordered to start, and whose end no line has reported yet."""

    start: StartReplica
    is_up: bool = False  # ReplicaStarted was recorded
    is_checked: bool = False  # it has passed the readiness check of its role
    is_ready: bool = False  # the same, and it has had a version that was fresh enough, if its role needs one (R23)
    is_stopping: bool = False
    ends_workers: bool = False  # the attempt is stopping, and its workers do not stay in place
    is_elastic: bool = False  # the replica has reported that its workers can stay in place
    version: int = -1  # the version that the attempt has acknowledged (R23); -1: none
    step: int = -1
    answered_step: int | None = None  # the replica's answer to AskStep
    has_answered: bool = False
    stalled: str = ""  # which sign of life is missing; empty: none


class Facts:
    """Facts of one job at one line of its record.

    For each line the caller calls `hear` first, which applies the event, and `follow` afterwards, which applies the
    effects. A replica counts as new in its world when it starts for the first time, or again after a failure or the
    loss of its node: a new member may not be the source of the model's state (R3).
    """

    def __init__(self, header: Header) -> None:
        self.graph: RoleGraph = header.graph
        self.specs: dict[str, RoleSpec] = {spec.name: spec for spec in header.graph.roles}
        self.expected: dict[NodeName, None] = dict.fromkeys(header.known_nodes)
        self.first_join_ns: int | None = None
        self.nodes: dict[NodeName, NodeSpec] = {}  # nodes that are up
        self.incarnations: dict[NodeName, int] = {}
        self.runs: dict[ReplicaId, Run] = {}
        self.suspended: dict[ReplicaId, StartReplica] = {}  # the attempts whose workers wait in place
        self.attempts: dict[ReplicaId, int] = {}
        self.done: dict[ReplicaId, int] = {}  # replicas that have succeeded, each with its generation then
        self.world_done: dict[WorldName, dict[ReplicaId, int]] = {}  # members that have succeeded, each with the time
        self.generations: dict[WorldName, int] = {}
        self.ports: dict[tuple[WorldName, int], int] = {}
        self.since: dict[WorldName, dict[ReplicaId, int]] = {}  # members, each with the generation that it joined in
        self.steps: dict[WorldName, dict[ReplicaId, int]] = {}  # last step of each member of the present generation
        self.formed_ns: dict[WorldName, int] = {}
        self.scaled: dict[str, None] = {}  # roles that the operator has scaled since their world formed
        self.epoch = header.epoch
        self.seats: dict[ReplicaId, NodeName] = {}  # the last node of each replica
        self.is_calm = True  # no node was lost, drained or cordoned, and no failure was ignored
        self.versions: dict[str, tuple[int, int, int]] = {}  # by role: generation, latest, highest version (R23)
        self.stuck: list[StartReplica] = []  # attempts that outlive SIGKILL
        self.bad_gpus: dict[NodeName, dict[int, None]] = {}  # GPU numbers, since the node has joined
        self.last_ns = -1  # time of the line before the present one
        self.grace_until_ns = -1  # until then a controller that took over judges no deadline
        self.suspected: dict[NodeName, None] = {}
        self.is_ending = False
        self.is_over = False

    def world_of(self, replica: ReplicaId) -> WorldName:
        """Return the world of a replica: the joint world of its role, else its gang, else the replica alone."""
        joint = self.graph.world_of(replica.role)
        if joint is not None:
            return joint.name
        return replica.role if self.specs[replica.role].gang else str(replica)

    def roles_in(self, world: WorldName) -> list[RoleSpec]:
        """Return the roles whose replicas are in the world: several for a joint world, else one."""
        own = world.split("/")[0]
        return [spec for spec in self.graph.roles if self.world_of(ReplicaId(spec.name, 0)).split("/")[0] == own]

    def members(self, world: WorldName) -> list[Run]:
        """Return the attempts of the world that run, in all of its generations."""
        return [run for run in self.runs.values() if run.start.world == world]

    def current(self, replica: ReplicaId, attempt: int) -> Run | None:
        """Return this attempt of the replica if it runs; None if it has ended, or another attempt runs."""
        run = self.runs.get(replica)
        return run if run is not None and run.start.attempt == attempt else None

    def hear(self, line: Record) -> None:
        """Update the facts by the event of a line; an event of an attempt that does not run changes nothing."""
        self._hear(line)
        for run in self.runs.values():
            if run.is_up and not run.is_ready and not run.is_stopping:
                run.is_ready = self.may_be_ready(run)

    def may_be_ready(self, run: Run) -> bool:
        """Return whether an attempt has passed the check of its role, and has a version that is fresh enough (R23).

        An attempt of a role without a check, and without `versions=`, never gets ready.
        """
        spec = self.specs[run.start.replica.role]
        if spec.ready is not None and not run.is_checked:
            return False
        if spec.versions is None:
            return run.is_checked
        _, latest, highest = self.versions.get(spec.versions.role, (0, -1, -1))
        return 0 <= run.version <= highest and latest - run.version <= spec.versions.max_staleness

    def _publish(self, run: Run, version: int) -> None:
        """Record a published version: the latest one if it is higher, or of a later generation than the latest."""
        role, generation = run.start.replica.role, run.start.generation
        last, latest, highest = self.versions.get(role, (0, -1, -1))
        if generation != last or version > latest:
            self.versions[role] = (generation, version, max(version, highest))

    def _hear(self, line: Record) -> None:
        event = line.event
        if isinstance(event, ev.NodeJoined | ev.NodeHeard | ev.NodeLeft | ev.NodeGone | ev.NodeSilent):
            self.suspected.pop(event.node, None)
        if ev.is_of_attempt(event):
            run = self.current(event.replica, event.attempt)
            if run is not None:
                self._note_report(line, run, event)
            return
        match event:
            case ev.NodeJoined():
                self._join(line, event)
            case ev.NodeSuspected():
                self.suspected[event.node] = None
            case ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
                self.expected.pop(event.node, None)
                self._lose(event.node)
            case ev.StoreOpened():
                self.ports[event.world, event.generation] = event.port
            case ev.ControllerStarted():
                options = self.graph.options
                self.grace_until_ns = line.t_ns + options.lease_ns + options.lease_margin_ns
            case ev.DrainRequested() | ev.CordonRequested() | ev.NodePreempted():
                self.is_calm = False
            case ev.GpuFailed():
                self._note_bad_gpu(event.node, event.gpu, event.xid)
            case ev.ScaleRequested():
                self.scaled[event.role] = None
            case _:
                pass

    def _note_report(self, line: Record, run: Run, event: ev.AttemptEvent) -> None:
        """Update the facts by an event of a running attempt: started, ready, progress, stalled, ended."""
        match event:
            case ev.ReplicaStarted():
                self._note_up(line, run)
            case ev.ReplicaReady():
                run.is_checked = True
            case ev.ReplicaAcknowledged():
                run.version = event.version
            case ev.ReplicaPublished():
                self._publish(run, event.version)
            case ev.ReplicaProgressed():
                run.step = event.step
                self.steps[run.start.world][event.replica] = run.step
            case ev.ReplicaElastic():
                run.is_elastic = True
            case ev.ReplicaStalled():
                if not run.is_stopping:
                    run.stalled, run.step = event.by, max(run.step, event.step)
                    self.steps[run.start.world][event.replica] = run.step
            case ev.ReplicaRevived():
                run.stalled = ""
            case ev.StepTold():
                run.answered_step, run.has_answered = event.step, True
            case ev.ReplicaExited() | ev.ReplicaStopped() | ev.ReplicaUnkillable():
                self._end(line, run, event)
            case _:
                pass

    def _note_up(self, line: Record, run: Run) -> None:
        """Mark the attempt as up; its world has formed when all members are up and none is stopping."""
        if run.is_up:
            return
        run.is_up = True
        world = run.start.world
        members = self.members(world)
        if all(member.is_up for member in members) and not any(member.is_stopping for member in members):
            self.formed_ns[world] = line.t_ns

    def _end(self, line: Record, run: Run, event: ev.ReplicaExited | ev.ReplicaStopped | ev.ReplicaUnkillable) -> None:
        """Remove an attempt that has ended, and record how: suspended, succeeded, unkillable or failed.

        A member that failed, or ended without an order, counts as new when it starts again. An unkillable one takes its
        node with it.
        """
        replica, world = run.start.replica, run.start.world
        del self.runs[replica]
        if not isinstance(event, ev.ReplicaUnkillable) and event.suspended and not run.ends_workers:
            self.suspended[replica] = run.start
        if isinstance(event, ev.ReplicaUnkillable):
            self.stuck.append(run.start)
            self.is_calm = False
            self.nodes.pop(run.start.node, None)
            for other in self.runs.values():
                if other.start.node == run.start.node and not other.is_stopping:
                    self._leave(other)
        is_success = isinstance(event, ev.ReplicaExited) and event.kind is None
        if is_success and self.specs[replica.role].kind == "task":
            self.done[replica] = run.start.generation
            self.world_done.setdefault(world, {})[replica] = line.t_ns
        elif not (isinstance(event, ev.ReplicaStopped) and run.is_stopping):
            self._leave(run)

    def _join(self, line: Record, event: ev.NodeJoined) -> None:
        """Record that an agent has connected.

        A new incarnation brings an empty node: what ran there is lost. In the same incarnation, the inventory of the
        agent says what became of each attempt. Attempts that it does not list are gone, except those that the line
        starts again. An earlier incarnation is ignored.
        """
        before = self.incarnations.get(event.node, 0)
        if event.incarnation < before:
            return
        if self.first_join_ns is None:
            self.first_join_ns = line.t_ns
        self.expected.pop(event.node, None)
        if event.incarnation != before or event.node not in self.nodes:
            self._lose(event.node)
            self.nodes[event.node], self.incarnations[event.node] = event.spec, event.incarnation
            self.bad_gpus[event.node] = {gpu: None for gpu, _ in event.bad_gpus}
            return
        for gpu, _ in event.bad_gpus:
            self._note_bad_gpu(event.node, gpu, 0)
        items = {(item.replica, item.attempt): item for item in event.inventory}
        again = {effect.replica for effect in line.effects if isinstance(effect, StartReplica)}
        for replica, run in list(self.runs.items()):
            if run.start.node != event.node:
                continue
            item = items.get((replica, run.start.attempt))
            if item is not None:
                self._note_item(line, run, item)
            elif replica not in again:
                del self.runs[replica]

    def _note_item(self, line: Record, run: Run, item: ev.InventoryItem) -> None:
        """Update an attempt by its item in the inventory of an agent that has connected again."""
        replica, attempt = run.start.replica, run.start.attempt
        if item.phase in ("running", "ready"):
            self._note_up(line, run)
            run.is_checked = run.is_checked or item.phase == "ready"
        elif item.exited is not None:
            self._end(line, run, item.exited)
        elif item.phase in ("suspended", "stopped"):
            self._end(line, run, ev.ReplicaStopped(replica, attempt, suspended=item.phase == "suspended"))

    def _note_bad_gpu(self, node: NodeName, gpu: int, xid: int) -> None:
        """Record a bad GPU: running members that use it have to move, and count as new afterwards.

        An Xid that reports an error of the program, a GPU that is bad already, and an unknown node change nothing.
        """
        if xid in PROGRAM_ERRORS or node not in self.nodes or gpu in self.bad_gpus.get(node, ()):
            return
        self.is_calm = False
        self.bad_gpus.setdefault(node, {})[gpu] = None
        for run in self.runs.values():
            if run.start.node == node and gpu in run.start.gpus and not run.is_stopping:
                self._leave(run)

    def _lose(self, node: NodeName) -> None:
        """Remove a node with its running and suspended attempts, whose replicas count as new when they start again."""
        if self.nodes.pop(node, None) is not None:
            self.is_calm = False
        self.suspended = {replica: start for replica, start in self.suspended.items() if start.node != node}
        for replica, run in list(self.runs.items()):
            if run.start.node == node:
                del self.runs[replica]
                self._leave(run)

    def _leave(self, run: Run) -> None:
        """Record that the member has left its world: it counts as new if it starts again."""
        self.since.get(run.start.world, {}).pop(run.start.replica, None)

    def follow(self, line: Record) -> None:
        """Update the facts by the effects of a line: starts, stops, opened stores, failures, the end of the job."""
        self.last_ns = line.t_ns
        for role, index in FAILED.findall(line.reason):
            failed = ReplicaId(role, int(index))
            self.since.get(self.world_of(failed), {}).pop(failed, None)
        starts = [effect for effect in line.effects if isinstance(effect, StartReplica)]
        for world in dict.fromkeys(
            start.world for start in starts if self.attempts.get(start.replica) != start.attempt
        ):
            self._begin(world, [start for start in starts if start.world == world])
        for effect in line.effects:
            match effect:
                case OpenStore():
                    self.generations[effect.world] = effect.generation
                case StopReplica():
                    self._stop(effect)
                case FinishJob():
                    self.is_over = True
                case Decided():
                    self.is_calm = self.is_calm and IGNORED not in effect.text
                    self.is_ending = self.is_ending or effect.text.startswith(ENDINGS)
                case _:
                    pass

    def _stop(self, effect: StopReplica) -> None:
        """Mark the attempt to stop as stopping, or remove it if it is suspended; if it is neither, do nothing."""
        run, waits = self.current(effect.replica, effect.attempt), self.suspended.get(effect.replica)
        if waits is not None and waits.attempt == effect.attempt:
            del self.suspended[effect.replica]
        if run is not None:
            run.is_stopping = True
            run.ends_workers = run.ends_workers or not effect.in_place
            self.formed_ns.pop(run.start.world, None)

    def _begin(self, world: WorldName, starts: list[StartReplica]) -> None:
        """Record the starts of a new generation of a world; replicas that were members before do not count as new."""
        before = self.since.get(world, {})
        generation = starts[0].generation
        self.since[world] = {start.replica: before.get(start.replica, generation) for start in starts}
        self.world_done[world] = {}
        self.steps[world] = {start.replica: -1 for start in starts}
        self.formed_ns.pop(world, None)
        for spec in self.roles_in(world):
            self.scaled.pop(spec.name, None)
        for start in starts:
            self.suspended.pop(start.replica, None)
            self.runs[start.replica] = Run(start)
            self.seats[start.replica] = start.node
            self.attempts[start.replica] = start.attempt
            self.done.pop(start.replica, None)


PROGRAM_ERRORS = (13, 31, 43, 45, 68, 109)  # Xids of errors in the program: the GPU itself is fine
