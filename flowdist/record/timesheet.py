"""Timesheet: the time accounts of a job, computed in one pass from the lines of its record alone.

The record holds what the controller decided; what the workers did is known only as far as they report it. Saving and
restoring that they do not report count as work and start-up. A simulation's trace ends with the simulator's accounts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flowdist.control.job.parts import Replica, World
from flowdist.control.job.state import JobState
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import FinishJob, StartReplica, StopAtStep, StopReplica
from flowdist.control.protocol.ids import Activity, NodeName, ReplicaId, WorldName
from flowdist.record.accounts import BUCKETS, Accounts, Bucket, Spent
from flowdist.record.journal import AccountLine, FaultLine, Line, Record, UnsavedLine
from flowdist.record.outages import Outages
from flowdist.record.work_segments import ClosedSegment, Unkept, WorkSegment

KEPT: tuple[Bucket, ...] = ("productive", "checkpoint", "restore")  # what the work that was kept consists of
CLOSED_MAX = 16  # ended segments of a world that a resumption from an early step may still declare lost
CLOSED_MARKS_MAX = 16
Sign = ev.ReplicaProgressed | ev.ReplicaStepped | ev.ReplicaSpent | ev.ReplicaStalled | ev.ReplicaRevived


@dataclass(slots=True)
class _Work:
    """Work of one world: the present segment with the members that work in it, and the segments that have ended."""

    name: WorldName
    segment: WorkSegment | None = None
    members: dict[ReplicaId, None] = field(default_factory=dict)
    stalled: dict[ReplicaId, None] = field(default_factory=dict)
    generation: int = 0
    has_memory: bool = False  # a member of the present generation stayed in place
    saves: bool = False  # a checkpoint of the world was ever accepted
    saved_step: int = 0
    spent: dict[Activity, int] = field(default_factory=dict)  # ns, of the member of the generation that spent most
    pace: tuple[int, int] | None = None  # ns and steps, of the last segment with two reports
    closed: list[ClosedSegment] = field(default_factory=list)
    # ns by role and bucket in which the work was booked before there was any report of a step
    unreported: Counter[tuple[str, Bucket]] = field(default_factory=Counter)


class Timesheet:
    """Time accounts of one job, from the lines of its record; those after the end of the job are ignored.

    The caller passes every line to `hear`, in order, right after the controller has handled its event.
    """

    def __init__(self, job: JobState) -> None:
        self._job, self._accounts = job, Accounts(job)
        self._work = {name: _Work(name) for name in job.worlds}
        self._unkept: dict[Unkept, Counter[WorldName]] = {"lost work": Counter(), "unsaved at the end": Counter()}
        self.ended: list[ClosedSegment] | None = None  # all segments that have ended, if the caller has set a list
        self._reporting: dict[str, None] = {}  # roles whose steps are reported or counted
        self._numbered: dict[str, None] = {}  # of these, the roles that report the numbers of their steps
        self._on: dict[NodeName, dict[ReplicaId, None]] = {}  # replicas whose last start was on that node
        self._node: dict[ReplicaId, NodeName] = {}
        self._still: dict[NodeName, list[ReplicaId]] = {}  # replicas with a worker that is stopped
        self._hit: dict[str, int] = {}  # when the last fault was injected, by its target
        self._outages = Outages(job)
        self._incarnations: dict[NodeName, int] = {}
        self._silent: dict[NodeName, list[tuple[WorldName, ClosedSegment, int]]] = {}  # its worlds, and when it fenced
        self._leaving: dict[ReplicaId, int] = {}  # the step at which a replica is to leave, until it has or has to stop
        self._over_ns: int | None = None  # when the job was over; None: it is not
        self.told: AccountLine | None = None  # the accounts of the simulator, at the end of a trace

    def hear(self, line: Line) -> None:
        """Book what the line changes: starts, work, ends, faults; `FinishJob` closes the accounts."""
        if isinstance(line, FaultLine):
            self._hit[line.hit] = line.t_ns
            self._hold_hit(line)
            self._outages.note_fault(line, self._replicas_hit(line))
        elif isinstance(line, UnsavedLine):
            members = self._job.worlds[line.world].members
            self._leaving = {each: step for each, step in self._leaving.items() if each not in members}
        elif isinstance(line, AccountLine):
            self.told = line
        if not isinstance(line, Record) or self._over_ns is not None:
            return
        now = line.t_ns
        self._stop_services(now)
        self._note_work(line)
        if isinstance(line.event, ev.NodeJoined):
            self._note_joined(line.event)
        for replica in self._changed(line.event):
            self._note_phase(self._job.replicas[replica], line.event, now)
        for effect in line.effects:
            match effect:
                case StartReplica():
                    self._start(effect, now)
                case StopReplica():
                    self._leaving.pop(effect.replica, None)
                case StopAtStep(step=int(step)):
                    self._leaving[effect.replica] = step
                case FinishJob():
                    self._over_ns = now
                case _:
                    pass
        self._accounts.hear(self._job, line)
        if self._over_ns is not None:
            self._close(now)

    def spent(self, now: int | None = None) -> Spent:
        """Return ns by role and bucket up to `now` (None: the last event) or the job's end. Work under way is kept."""
        if self.told is not None:
            known = self.told.spent
            return {name: {each: known.get(name, {}).get(each, 0) for each in BUCKETS} for name in self._job.roles}
        if self._over_ns is not None:
            return self._accounts.spent_by(self._over_ns, {})
        now = self._job.now if now is None else max(now, self._job.now)
        under_way: dict[ReplicaId, dict[Bucket, int]] = {}
        for name, work in self._work.items():
            if work.segment is not None:
                end = work.segment.position(now)
                start = self._begins_at(name, work.segment, end)
                parts = self._parts(name, start, end, end, now)
                under_way |= dict.fromkeys(work.members, parts)
        return self._accounts.spent_by(now, under_way)

    def lost(self) -> dict[str, int]:
        """Return the lost work of each role in ns: the time of its worlds, each counted once and not by its members."""
        if self.told is not None:
            return {name: self.told.lost_ns.get(name, 0) for name in self._job.roles}
        lost = self._unkept["lost work"]
        return {name: sum(lost[world] for world in role.worlds) for name, role in self._job.roles.items()}

    def unkept(self, how: Unkept) -> int:
        """Return the ns of work of all worlds that was lost, or unsaved at the end: each world is counted once."""
        if self.told is not None:
            return sum(one.ns for one in self.told.unkept if one.is_unsaved == (how == "unsaved at the end"))
        return sum(self._unkept[how].values())

    def lasted(self) -> int:
        """Return the nanoseconds from the start of the job to its end, or to the last event while it runs."""
        if self.told is not None:
            return self.told.t_ns
        return self._job.now if self._over_ns is None else self._over_ns

    def unreported(self) -> dict[str, list[str]]:
        """Return for each task which reports its workers have never made: `progress`, `step numbers`, `checkpoints`."""
        found = {}
        for name in (spec.name for spec in self._job.graph.roles if spec.kind == "task"):
            saves = any(self._work[world].saves for world in self._job.roles[name].worlds)
            kind = "step numbers" if name in self._reporting else "progress"
            reported = {kind: name in self._numbered, "checkpoints": saves} if self.told is None else {}
            found[name] = [kind for kind, is_reported in reported.items() if not is_reported]
        return found

    # Events.

    def _note_work(self, line: Record) -> None:
        """Pass on what an event says about work, unless its attempt does not run any more."""
        event, now = line.event, line.t_ns
        match event:
            case _ if isinstance(event, Sign):
                replica = self._job.replicas.get(event.replica)
                if replica is not None and replica.attempt == event.attempt and replica.is_live:
                    self._note_sign(replica, event, now)
            case ev.CheckpointOffered():
                if line.accepts:
                    self._save(self._work[self._job.replicas[event.replica].world], event.step, now)
            case ev.ReplicaExited() | ev.ReplicaStopped() | ev.ReplicaLeftStep():
                self._note_left(event, now)
            case ev.NodeStandsStill():
                self._note_still(event, now)
            case _:
                pass

    def _note_left(self, event: ev.ReplicaExited | ev.ReplicaStopped | ev.ReplicaLeftStep, now: int) -> None:
        """End the work of a world whose member has left the agreed step, which counts as saved if the world saves."""
        replica = self._job.replicas.get(event.replica)
        step = self._leaving.pop(event.replica, None)
        if replica is None or step is None or replica.attempt != event.attempt or isinstance(event, ev.ReplicaExited):
            return
        work = self._work[replica.world]
        if work.saves:
            self._save(work, step, now)
        if work.segment is not None:
            self._halt(replica.world, now)

    def _note_sign(self, replica: Replica, event: Sign, now: int) -> None:
        """Pass on what a live attempt reports about its work."""
        match event:
            case ev.ReplicaProgressed():
                self._report(replica, event.step, now)
            case ev.ReplicaStepped():
                self._count(replica, event.steps, now)
            case ev.ReplicaSpent():
                self._spend(replica, event, now)
            case _:
                self._stall(replica, event, now)

    def _changed(self, event: ev.Event) -> list[ReplicaId]:
        match event:
            case ev.ReplicaPublished():
                holders = [spec.name for spec in self._job.graph.holders_of(event.replica.role)]
                return [replica for replica in self._node if replica.role in holders]
            case (
                ev.ReplicaStarted()
                | ev.ReplicaReady()
                | ev.ReplicaAcknowledged()
                | ev.ReplicaExited()
                | ev.ReplicaStopped()
            ):
                return [event.replica] if event.replica in self._node else []
            case ev.NodeJoined() | ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
                return list(self._on.get(event.node, ()))
            case ev.ReplicaUnkillable():
                return list(self._on.get(self._node.get(event.replica, ""), ()))
            case _:
                return []

    def _note_phase(self, replica: Replica, event: ev.Event, now: int) -> None:
        """Begin or end the work of a replica whose phase the event may have changed."""
        if replica.phase in ("running", "ready"):
            self._note_up(replica, now)
        elif not replica.is_live:
            self._note_end(replica, event, now)

    def _note_up(self, replica: Replica, now: int) -> None:
        """Count a replica of a service as productive once it is up, or begin the work of a world once it has formed."""
        spec = self._job.role_of(replica.id).spec
        world = self._job.worlds[replica.world]
        if spec.kind == "service":
            is_up = not spec.has_readiness or replica.phase == "ready"
            if is_up and self._accounts.bucket_of(replica.id) == "start-up":
                self._accounts.move(replica.id, "productive", now)
                self._end_outage(replica.id, now)
        elif self._work[world.name].segment is None and self._is_formed(world):
            self._begin(world, now)

    def _is_formed(self, world: World) -> bool:
        """Return whether all members of the world run, and have passed their readiness checks."""
        if world.formed_ns is None:
            return False
        checked = [role.spec.name for role in self._job.roles_of(world) if role.spec.has_readiness]
        if not checked or not world.counts["running"]:
            return True
        return all(member.phase != "running" for member in self._job.members_of(world) if member.id.role in checked)

    def _start(self, start: StartReplica, now: int) -> None:
        """Record the node on which a replica starts; with a new generation, end the work of the one before."""
        work = self._work[start.world]
        if start.generation != work.generation:
            if work.segment is not None:
                self._halt(start.world, now)
            work.generation, work.has_memory = start.generation, self._job.worlds[start.world].has_state
            work.spent.clear()
        before = self._node.get(start.replica)
        self._outages.forget_fault(start.replica)
        if before is not None:
            self._on[before].pop(start.replica, None)
        self._node[start.replica] = start.node
        self._on.setdefault(start.node, {})[start.replica] = None

    # Work of a world.

    def _begin(self, world: World, now: int) -> None:
        """Begin a segment of work with all members of the world that start up; without such members, do nothing."""
        work = self._work[world.name]
        tasks = [member for member in world.members if self._job.role_of(member).spec.kind == "task"]
        members = [member for member in tasks if self._accounts.bucket_of(member) == "start-up"]
        if not members:
            return
        resumed = work.saved_step if work.saves and not work.has_memory else None
        work.segment = WorkSegment(now, 0 if work.generation == 1 else resumed)
        work.members = dict.fromkeys(members)
        work.stalled.clear()
        self._accounts.begin_work(members, now, work.spent.get("restoring", 0))

    def _report(self, replica: Replica, step: int, now: int) -> None:
        """Add the report of a member that has done `step` to the segment of its world.

        The first one of a segment shows where the generation resumed, and so how much of ended segments was kept.
        """
        work = self._work[replica.world]
        segment = self._segment_of(replica, now)
        if segment is None:
            return
        for role in self._job.worlds[replica.world].roles:
            self._numbered[role] = None
        work.closed = [closed for closed in work.closed if not closed.segment.is_counted]
        is_first = segment.is_counted or not segment.marks
        if is_first and (work.has_memory or not work.saves or step < work.saved_step):
            self._resume_from(work, step - 1)
        segment.report(step, now, work.pace)
        self._hold_if_away(replica.world, segment, now)

    def _count(self, replica: Replica, steps: int, now: int) -> None:
        """Add to the segment of its world that a member has taken so many optimizer steps in its attempt."""
        segment = self._segment_of(replica, now)
        if segment is not None:
            segment.count(steps, now, self._work[replica.world].pace)
            self._hold_if_away(replica.world, segment, now)

    def _spend(self, replica: Replica, event: ev.ReplicaSpent, now: int) -> None:
        """Add to its world's segment what a member spent on saving or restoring, or keep it until there is one."""
        work = self._work[replica.world]
        if self._job.role_of(replica.id).spec.kind == "service":
            return
        more = event.ns - work.spent.get(event.on, 0)
        if more > 0:
            work.spent[event.on] = event.ns
            if work.segment is not None:
                work.segment.spend(event.on, more, now)

    def _segment_of(self, replica: Replica, now: int) -> WorkSegment | None:
        """Return the world's segment for a step of the replica, begun by it if need be; None if it is no member."""
        world = self._job.worlds[replica.world]
        work = self._work[world.name]
        if work.segment is None and world.phase == "running":
            self._begin(world, now)
        if work.segment is None or replica.id not in work.members:
            return None
        for role in world.roles:
            if role not in self._reporting:
                self._first_report(role)
        return work.segment

    def _first_report(self, role: str) -> None:
        """Note the first report of a role: its steps begin there, so all of its work before was start-up."""
        self._reporting[role] = None
        for name in self._job.roles[role].worlds:
            work = self._work[name]
            for (each, bucket), ns in work.unreported.items():
                self._accounts.transfer(each, bucket, "start-up", ns)
            work.unreported.clear()
            work.closed = [closed for closed in work.closed if closed.segment.marks]

    def _resume_from(self, work: _Work, step: int) -> None:
        """Correct the ended segments of a world: work after `step` is done again, and work before it was kept."""
        work.saved_step = min(work.saved_step, step)
        while work.closed:
            closed = work.closed[-1]
            more = closed.resume_from(step)
            self._unkept["lost work"][work.name] += more["lost work"]
            for role, count in closed.counts.items():
                for bucket in KEPT:
                    self._accounts.transfer(role, "lost work", bucket, count * more[bucket])
            if closed.segment.marks and step >= closed.segment.marks[0][1]:
                return
            work.closed.pop()  # all of it is lost, and possibly work of the segment before it

    def _save(self, work: _Work, step: int, now: int) -> None:
        """Record an accepted checkpoint of a world at `step`.

        The first one shows that the world saves: ended segments without step reports count as lost then, because no
        checkpoint kept their work. What members have done that had succeeded by then is known to be kept.
        """
        if not work.saves:  # a world that saves but reports no steps began anew after each segment without a checkpoint
            for closed in [closed for closed in work.closed if not closed.segment.marks]:
                worked, closed.kept = closed.split()["productive"], closed.start
                self._unkept["lost work"][work.name] += worked
                for role, count in closed.counts.items():
                    self._accounts.transfer(role, "unknown", "lost work", count * worked)
                    work.unreported[role, "unknown"] -= count * worked
                work.closed.remove(closed)
            for role in {role: None for role, bucket in work.unreported if bucket == "unknown"}:
                ns = work.unreported.pop((role, "unknown"))
                self._accounts.transfer(role, "unknown", "productive", ns)
                work.unreported[role, "productive"] += ns
        work.saves, work.saved_step = True, step
        if work.segment is not None:
            work.segment.save(step, now)

    def _stall(self, replica: Replica, event: ev.ReplicaStalled | ev.ReplicaRevived, now: int) -> None:
        """Stop a world's work when a member stalls, but not by mere silence (R15); the last that revives resumes it."""
        work = self._work[replica.world]
        if self._job.role_of(replica.id).spec.kind == "service":
            if isinstance(event, ev.ReplicaRevived):
                self._accounts.serve_again(replica.id, now)
                self._end_outage(replica.id, now)
            elif event.was_seen:
                self._accounts.stand_still(replica.id, now - event.for_ns)
                self._begin_outage(replica.id, now - event.for_ns)
            return
        if work.segment is None or replica.id not in work.members:
            return
        if isinstance(event, ev.ReplicaRevived):
            if work.stalled.pop(replica.id, True) is None and not work.stalled:
                work.segment.revive(now)
        elif event.was_seen:
            work.stalled[replica.id] = None
            work.segment.stall(now - event.for_ns)

    def _note_end(self, replica: Replica, event: ev.Event, now: int) -> None:
        """End the work of a replica that has ended: its own alone if it has succeeded, else that of its world."""
        bucket = self._accounts.bucket_of(replica.id)
        if bucket == "work" and replica.phase == "succeeded":
            self._finish(replica, now)
        elif bucket == "work":
            since = self._since(replica.id, event, now)
            self._halt(replica.world, since)
            if isinstance(event, ev.NodeSilent) and self._work[replica.world].closed[-1].ended_ns == since:
                self._note_silent(self._work[replica.world], event.node, now)
        elif bucket == "productive":
            since = self._since(replica.id, event, now)
            self._accounts.stop_serving(replica.id, since)
            self._begin_outage(replica.id, since)

    def _note_silent(self, work: _Work, node: NodeName, now: int) -> None:
        """Keep the ended segment of a world that worked on a silent node alone: it may have worked until the fence.

        The world must have worked up to its end: one that stood still before it is not taken to have gone on.
        """
        closed, number = work.closed[-1], self._job.worlds[work.name].incident
        is_alone = all(self._node[member] == node for member in closed.members)
        is_noticed = number is not None and self._job.incident(number).opened_ns == now  # it was in no other incident
        if is_alone and is_noticed and closed.segment.marks and not self._accounts.is_ending(now):
            fenced_ns = now - self._job.graph.options.lease_margin_ns
            self._silent.setdefault(node, []).append((work.name, closed, fenced_ns))

    def _note_joined(self, event: ev.NodeJoined) -> None:
        """Book what was done on a silent node up to its fence as lost, if the agent that joins has fenced.

        After a fence it joins with the next incarnation. Any other one is a new agent, and the node was dead.
        """
        has_fenced = event.incarnation == self._incarnations.get(event.node, 0) + 1
        self._incarnations[event.node] = event.incarnation
        for name, closed, fenced_ns in self._silent.pop(event.node, ()):
            more = fenced_ns - closed.ended_ns
            if has_fenced and more > 0:
                closed.end, closed.ended_ns = closed.end + more, fenced_ns
                self._unkept[closed.unkept][name] += more
                for member in closed.members:
                    self._accounts.transfer(member.role, "detection", closed.unkept, more)

    # Outages.

    def _begin_outage(self, server: ReplicaId, since: int) -> None:
        """Count no work of the worlds that depend on a replica of a service, which is away or stands still."""
        for segment in self._segments(self._outages.begin(server)):
            segment.hold(since)

    def _end_outage(self, server: ReplicaId, now: int) -> None:
        """Note that a replica of a service serves: worlds that report steps work again from their next step on."""
        for segment in self._segments(self._outages.end(server)):
            segment.release(now)

    def _hold_if_away(self, world: str, segment: WorkSegment, now: int) -> None:
        """Count no work after a step during an outage: the next step will show whether the world worked."""
        if self._outages.is_any_of(world):
            segment.hold(now)

    def _hold_hit(self, line: FaultLine) -> None:
        """Let the next step show how much worlds have worked that a fault may keep from work, such as a pause."""
        for segment in self._segments(self._outages.worlds_hit(self._replicas_hit(line))):
            if segment.marks:
                segment.hold(line.t_ns)

    def _note_still(self, event: ev.NodeStandsStill, now: int) -> None:
        """Count no work of worlds that a stopped worker may keep from work, until a step shows how much they did."""
        there = self._on.get(event.node, {})
        stopped = [replica for replica in event.workers if replica in there]
        for segment in self._segments(self._outages.worlds_hit(stopped)):
            if segment.marks:
                segment.hold(0)  # since the last report: the node tells a little later
        for replica in stopped:
            self._accounts.stand_still(replica, now)
        for replica in self._still.get(event.node, ()):
            if replica in there and replica not in stopped:
                self._accounts.serve_again(replica, now)
        self._still[event.node] = stopped

    def _stop_services(self, now: int) -> None:
        """Count services as stalled since a fault has stopped them, and as productive since they went on."""
        for at, replica, stands_still in self._outages.turns(now):
            (self._accounts.stand_still if stands_still else self._accounts.serve_again)(replica, at)

    def _replicas_hit(self, line: FaultLine) -> list[ReplicaId]:
        name = line.hit.partition(".")[0]
        return [each for each in self._node if str(each) == name] or list(self._on.get(name, ()))

    def _segments(self, worlds: Iterable[WorldName]) -> list[WorkSegment]:
        return [segment for name in worlds if (segment := self._work[name].segment) is not None]

    def _since(self, replica: ReplicaId, event: ev.Event, now: int) -> int:
        """Return the time (ns), `now` at the latest, from which on a replica that has ended could not continue.

        That is the last fault shortly before that hit it, its node or a stalled member; else the last progress.
        """
        options, work = self._job.graph.options, self._work[self._job.replicas[replica].world]
        segment = work.segment
        first = now
        if isinstance(event, ev.NodeSilent):
            first = max(0, now - options.lease_ns - options.lease_margin_ns)
        if segment is not None and segment.stalled_since is not None:
            first = min(first, segment.stalled_since)
        rank = event.local_rank if isinstance(event, ev.ReplicaExited) else 0
        targets = (str(replica), f"{replica}.{rank}", self._node[replica], *map(str, work.stalled))
        hits = [self._hit[target] for target in targets if target in self._hit]
        hits = [at for at in hits if at >= first - options.cause_window_ns]
        if hits or segment is None:
            return max(hits, default=first)
        return max(first, segment.moved_ns)

    def _finish(self, replica: Replica, now: int) -> None:
        """Book the work of a member that has succeeded as kept; the other members may work on."""
        work = self._work[replica.world]
        assert work.segment is not None
        work.segment.revive(now)
        end = work.segment.position(now)
        start = self._begins_at(replica.world, work.segment, end)
        parts = self._parts(replica.world, start, end, end, now)
        del work.members[replica.id]
        self._note_unreported(work, [replica.id], parts)
        self._accounts.end_work(self._job, [replica.id], parts, now)
        if not work.members:
            work.segment = None

    def _halt(self, name: str, at: int) -> None:
        """End the segment of a world at the time `at`: a member is gone, and the others cannot continue without it.

        Once the end of the job is decided, what was not saved is booked as that, not as lost: nothing does it again.
        """
        work = self._work[name]
        segment = work.segment
        assert segment is not None
        at = max(at, segment.begun_ns)
        end, until = segment.position(at), segment.worked_until(at)
        segment.stalled_since = None
        start = kept = self._begins_at(name, segment, end)
        if not work.saves:
            kept = end
        elif segment.saved is not None:
            kept = max(start, min(segment.saved, end))
        unkept: Unkept = "unsaved at the end" if self._accounts.is_ending(at) else "lost work"
        parts = self._parts(name, start, kept, end, at, unkept)
        if segment.saved is None:
            self._note_unreported(work, work.members, parts)
        self._accounts.end_work(self._job, work.members, parts, at)
        self._unkept[unkept][name] += parts[unkept]
        ended = ClosedSegment(segment, start, end, kept, until, unkept, tuple(work.members))
        if self.ended is not None:
            self.ended.append(ended)
        work.closed = [*work.closed[-CLOSED_MAX + 1 :], ended]
        for closed in work.closed[-2:-1]:
            closed.segment.thin(CLOSED_MARKS_MAX)
        work.pace = segment.pace() or work.pace
        work.segment, work.members = None, {}

    def _begins_at(self, name: str, segment: WorkSegment, end: int) -> int:
        """Return the position (ns of work, at most `end`) at which start-up ended.

        A segment without reports is all start-up if a role of the world reports progress at other times, else all work.
        """
        if not segment.marks:
            return end if any(role in self._reporting for role in self._job.worlds[name].roles) else 0
        return min(segment.begins_at(self._work[name].pace), end)

    def _parts(
        self, name: str, start: int, kept: int, end: int, at: int, unkept: Unkept = "lost work"
    ) -> dict[Bucket, int]:
        """Return ns by bucket of a world's present segment up to `at`; unknown without any step or checkpoint."""
        segment, work = self._work[name].segment, self._work[name]
        assert segment is not None
        parts = segment.split(start, kept, end, at - segment.begun_ns, unkept)
        if not work.saves and not any(role in self._reporting for role in self._job.worlds[name].roles):
            parts["unknown"] = parts.pop("productive")
        return parts

    def _note_unreported(self, work: _Work, members: Iterable[ReplicaId], parts: Mapping[Bucket, int]) -> None:
        """Note the work in `parts` of each member whose role has never reported: the first report makes it start-up."""
        bucket: Bucket = "unknown" if "unknown" in parts else "productive"
        for replica in members:
            if replica.role not in self._reporting:
                work.unreported[replica.role, bucket] += parts[bucket]

    def _close(self, now: int) -> None:
        """End all work, and book the time of all replicas up to the end of the job."""
        for name, work in self._work.items():
            if work.segment is not None:
                self._halt(name, now)
        self._accounts.close(now)
