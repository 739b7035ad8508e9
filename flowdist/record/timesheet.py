"""Where the time of a job went, as its record tells: the accounts of `accounts`, kept from the lines alone.

What control decides is in the record; what the workers did has to be told by them. A world works from when all of it
runs (or, where it reports progress, from the first step on) to the first sign that it cannot go on: the exit of a
member, the last heartbeat of a lost node, the last sign of one that hangs, a fault that was injected just before. What
of its work was lost is said in `stretches`. Saving and reading of checkpoints are told by nobody: they count as work
and as start-up.

One pass, and what is kept does not grow with the number of lines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from flowdist.control.job.state import JobState, Replica, World
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import AnswerCheckpoint, FinishJob, StartReplica, StopReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.record.accounts import Accounts, Bucket, Spent
from flowdist.record.journal import FaultLine, Line, Record
from flowdist.record.work_segments import ClosedSegment, WorkSegment, split

PASTS_MAX = 16  # stretches of which it may yet turn out that they were of no use
PAST_MARKS_MAX = 16


class Told(NamedTuple):
    """What the workers of a role ever told of their work."""

    progress: bool
    checkpoints: bool


@dataclass(slots=True)
class _Work:
    """The work of one world. `members` are those who are in the present stretch."""

    stretch: WorkSegment | None = None
    members: dict[ReplicaId, None] = field(default_factory=dict)
    stalled: dict[ReplicaId, None] = field(default_factory=dict)
    generation: int = 0
    has_memory: bool = False  # a member of the present generation goes on in place
    saves: bool = False  # a checkpoint of it was ever accepted
    saved_step: int = 0
    pace: tuple[int, int] | None = None  # of the last stretch that had one
    past: list[ClosedSegment] = field(default_factory=list)
    unreported: Counter[str] = field(default_factory=Counter)  # ns of work, by role, before there was any report


class Timesheet:
    """It is told every line, in order, right after the job has handled it."""

    def __init__(self, job: JobState) -> None:
        self._job, self._accounts = job, Accounts(job)
        self._work = {name: _Work() for name in job.worlds}
        self._reporting: dict[str, None] = {}  # roles that report progress
        self._on: dict[NodeName, dict[ReplicaId, None]] = {}  # what was started there last
        self._node: dict[ReplicaId, NodeName] = {}
        self._suspended: dict[ReplicaId, None] = {}
        self._hit: dict[str, int] = {}  # when a fault was carried out, by its target
        self._over_ns: int | None = None  # when the job was

    def hear(self, line: Line) -> None:
        if isinstance(line, FaultLine):
            self._hit[line.target or line.spec.partition("@")[0]] = line.t_ns
        if not isinstance(line, Record) or self._over_ns is not None:
            return
        now = line.t_ns
        self._listen(line)
        for replica in self._concerned(line.event):
            self._look(self._job.replicas[replica], line.event, now)
        for effect in line.effects:
            match effect:
                case StartReplica():
                    self._start(effect, now)
                case StopReplica(in_place=False):
                    self._suspended.pop(effect.replica, None)
                case FinishJob():
                    self._over_ns = now
                case _:
                    pass
        self._accounts.hear(self._job, line)
        if self._over_ns is not None:
            self._close(now)

    def spent(self, now: int | None = None) -> Spent:
        """Up to now, or to the end of the job: together that time x replicas. Of work under way nothing is lost yet."""
        if self._over_ns is not None:
            return self._accounts.spent_by(self._over_ns, {})
        now = self._job.now if now is None else max(now, self._job.now)
        under_way: dict[ReplicaId, dict[Bucket, int]] = {}
        for name, work in self._work.items():
            if work.stretch is not None:
                end = work.stretch.position(now)
                parts = split(self._begins_at(name, work.stretch, end), end, end, now - work.stretch.begun_ns)
                under_way |= dict.fromkeys(work.members, parts)
        return self._accounts.spent_by(now, under_way)

    def lasted(self) -> int:
        """In ns: what `spent` comes to, for each replica."""
        return self._job.now if self._over_ns is None else self._over_ns

    def told(self) -> dict[str, Told]:
        """Of the roles of tasks."""
        tasks = [role for role in self._job.roles.values() if role.spec.kind == "task"]
        return {
            role.spec.name: Told(
                role.spec.name in self._reporting, any(self._work[world].saves for world in role.worlds)
            )
            for role in tasks
        }

    # What is heard.

    def _listen(self, line: Record) -> None:
        """What workers say of their work."""
        event, now = line.event, line.t_ns
        match event:
            case ev.ReplicaProgressed() | ev.ReplicaStalled() | ev.ReplicaRevived():
                replica = self._job.replicas.get(event.replica)
                if replica is None or replica.attempt != event.attempt or not replica.is_live:
                    return
                if isinstance(event, ev.ReplicaProgressed):
                    self._report(replica, event.step, now)
                else:
                    self._stall(replica, event, now)
            case ev.CheckpointOffered():
                if any(isinstance(effect, AnswerCheckpoint) and effect.accepted for effect in line.effects):
                    self._save(self._work[self._job.replicas[event.replica].world], event.step, now)
            case ev.ReplicaExited(suspended=True) | ev.ReplicaStopped(suspended=True):
                if event.replica in self._job.suspended:
                    self._suspended[event.replica] = None
            case _:
                pass

    def _concerned(self, event: ev.Event) -> list[ReplicaId]:
        """Whose state the event may have changed."""
        match event:
            case ev.ReplicaStarted() | ev.ReplicaReady() | ev.ReplicaExited() | ev.ReplicaStopped():
                return [event.replica] if event.replica in self._node else []
            case ev.NodeJoined() | ev.NodeLeft() | ev.NodeGone() | ev.NodeSilent():
                return list(self._on.get(event.node, ()))
            case ev.ReplicaUnkillable():
                return list(self._on.get(self._node.get(event.replica, ""), ()))
            case _:
                return []

    def _look(self, replica: Replica, event: ev.Event, now: int) -> None:
        """How is it now?"""
        if replica.phase in ("running", "ready"):
            self._note_up(replica, now)
        elif not replica.is_live:
            self._note_end(replica, event, now)

    def _note_up(self, replica: Replica, now: int) -> None:
        spec = self._job.role_of(replica.id).spec
        world = self._job.worlds[replica.world]
        if spec.kind == "service":
            is_up = spec.ready is None or replica.phase == "ready"
            if is_up and self._accounts.bucket_of(replica.id) == "start-up":
                self._accounts.serves(replica.id, now)
        elif self._work[world.name].stretch is None and self._is_formed(world):
            self._begin(world, now)

    def _is_formed(self, world: World) -> bool:
        """All of it runs, and has passed its readiness check."""
        if world.formed_ns is None:
            return False
        checked = [role.spec.name for role in self._job.roles_of(world) if role.spec.ready is not None]
        if not checked or not world.counts["running"]:
            return True
        return all(member.phase != "running" for member in self._job.members_of(world) if member.id.role in checked)

    def _start(self, start: StartReplica, now: int) -> None:
        """A generation starts, or one more of its members is told to."""
        work = self._work[start.world]
        if start.generation != work.generation:
            if work.stretch is not None:
                self._halt(start.world, now)
            work.generation, work.has_memory = start.generation, False
        stays = start.replica in self._suspended and self._node.get(start.replica) == start.node
        work.has_memory |= stays
        self._suspended.pop(start.replica, None)
        before = self._node.get(start.replica)
        if before is not None:
            self._on[before].pop(start.replica, None)
        self._node[start.replica] = start.node
        self._on.setdefault(start.node, {})[start.replica] = None

    # What follows for the work of a world.

    def _begin(self, world: World, now: int) -> None:
        """All members that start up begin to work."""
        work = self._work[world.name]
        tasks = [member for member in world.members if self._job.role_of(member).spec.kind == "task"]
        members = [member for member in tasks if self._accounts.bucket_of(member) == "start-up"]
        if not members:
            return
        resumed = work.saved_step if work.saves and not work.has_memory else None
        work.stretch = WorkSegment(now, 0 if work.generation == 1 else resumed)
        work.members = dict.fromkeys(members)
        work.stalled.clear()
        self._accounts.begins(members, now)

    def _report(self, replica: Replica, step: int, now: int) -> None:
        world = self._job.worlds[replica.world]
        work = self._work[world.name]
        if work.stretch is None and world.phase == "running":
            self._begin(world, now)
        if work.stretch is None or replica.id not in work.members:
            return
        for role in world.roles:
            if role not in self._reporting:
                self._first_report(role)
        if not work.stretch.marks and (work.has_memory or not work.saves or step < work.saved_step):
            self._resumes_from(work, step - 1)
        work.stretch.reports(step, now)

    def _first_report(self, role: str) -> None:
        """The role tells its progress: time before this that seemed to be work was start-up."""
        self._reporting[role] = None
        for name in self._job.roles[role].worlds:
            work = self._work[name]
            for each, ns in work.unreported.items():
                self._accounts.transfer(each, "productive", "start-up", ns)
            work.unreported.clear()
            work.past = [past for past in work.past if past.stretch.marks]

    def _resumes_from(self, work: _Work, step: int) -> None:
        """What was done after that step is done again, and what was done before it was kept after all."""
        work.saved_step = min(work.saved_step, step)
        while work.past:
            past = work.past[-1]
            more = past.resumes(step)
            for role, count in past.counts.items():
                self._accounts.transfer(role, "lost work", "productive", count * more)
            if past.stretch.marks and step >= past.stretch.marks[0][1]:
                return
            work.past.pop()  # all of it is lost, and maybe some of what was before

    def _save(self, work: _Work, step: int, now: int) -> None:
        if not work.saves:  # who saves, and never says how far it is, began anew after each stretch without
            for past in [past for past in work.past if not past.stretch.marks]:
                for role, count in past.counts.items():
                    self._accounts.transfer(role, "productive", "lost work", count * (past.kept - past.start))
                    work.unreported[role] -= count * (past.kept - past.start)
                work.past.remove(past)
        work.saves, work.saved_step = True, step
        if work.stretch is not None:
            work.stretch.saves(step, now)

    def _stall(self, replica: Replica, event: ev.ReplicaStalled | ev.ReplicaRevived, now: int) -> None:
        """No sign of a member, or one again. A rank that never printed is not missed by that alone (R15)."""
        work = self._work[replica.world]
        if work.stretch is None or replica.id not in work.members:
            return
        if isinstance(event, ev.ReplicaRevived):
            if work.stalled.pop(replica.id, True) is None and not work.stalled:
                work.stretch.goes_on(now)
        elif event.was_seen:
            work.stalled[replica.id] = None
            work.stretch.stalls(now - event.for_ns)

    def _note_end(self, replica: Replica, event: ev.Event, now: int) -> None:
        """An attempt is over."""
        bucket = self._accounts.bucket_of(replica.id)
        if bucket == "work" and replica.phase == "succeeded":
            self._finish(replica, now)
        elif bucket == "work":
            self._halt(replica.world, self._since(replica.id, event, now))
        elif bucket == "productive":
            self._accounts.stopped_working(replica.id, self._since(replica.id, event, now))

    def _since(self, replica: ReplicaId, event: ev.Event, now: int) -> int:
        """The first sign that it could not go on: a fault just before, or when there was no sign of it any more."""
        options, work = self._job.graph.options, self._work[self._job.replicas[replica].world]
        stretch = work.stretch
        first = now
        if isinstance(event, ev.NodeSilent):
            first = max(0, now - options.lease_ns - options.lease_margin_ns)
        if stretch is not None and stretch.stalled_since is not None:
            first = min(first, stretch.stalled_since)
        rank = event.local_rank if isinstance(event, ev.ReplicaExited) else 0
        targets = (str(replica), f"{replica}.{rank}", self._node[replica], *map(str, work.stalled))
        hits = [self._hit[target] for target in targets if target in self._hit]
        hits = [at for at in hits if at >= first - options.cause_window_ns]
        if hits or stretch is None:
            return max(hits, default=first)
        return max(first, stretch.moved_ns)

    def _finish(self, replica: Replica, now: int) -> None:
        """Its work is done, and all of it was kept; the others may still be at theirs."""
        work = self._work[replica.world]
        assert work.stretch is not None
        work.stretch.goes_on(now)
        end = work.stretch.position(now)
        start = self._begins_at(replica.world, work.stretch, end)
        del work.members[replica.id]
        self._note_unreported(work, [replica.id], end - start)
        self._accounts.halts(self._job, [replica.id], split(start, end, end, now - work.stretch.begun_ns), now)
        if not work.members:
            work.stretch = None

    def _halt(self, name: str, at: int) -> None:
        """A member is gone: the others wait for it in vain."""
        work = self._work[name]
        stretch = work.stretch
        assert stretch is not None
        at = max(at, stretch.begun_ns)
        end = stretch.position(at)
        stretch.stalled_since = None
        start = kept = self._begins_at(name, stretch, end)
        if not work.saves:
            kept = end
        elif stretch.saved is not None:
            kept = max(start, min(stretch.saved, end))
        if stretch.saved is None:
            self._note_unreported(work, work.members, kept - start)
        self._accounts.halts(self._job, work.members, split(start, kept, end, at - stretch.begun_ns), at)
        work.past = [*work.past[-PASTS_MAX + 1 :], ClosedSegment(stretch, start, end, kept, _by_role(work.members))]
        for past in work.past[-2:-1]:
            past.stretch.thin(PAST_MARKS_MAX)
        work.pace = stretch.pace() or work.pace
        work.stretch, work.members = None, {}

    def _begins_at(self, name: str, stretch: WorkSegment, end: int) -> int:
        """Who reports progress starts up until the first step; of others it is not known, and they work at once."""
        if not stretch.marks:
            return end if any(role in self._reporting for role in self._job.worlds[name].roles) else 0
        return min(stretch.begins_at(self._work[name].pace), end)

    def _note_unreported(self, work: _Work, members: Iterable[ReplicaId], ns: int) -> None:
        for replica in members:
            if replica.role not in self._reporting:
                work.unreported[replica.role] += ns

    def _close(self, now: int) -> None:
        for name, work in self._work.items():
            if work.stretch is not None:
                self._halt(name, now)
        self._accounts.close(now)


def _by_role(members: dict[ReplicaId, None]) -> dict[str, int]:
    return dict(Counter(member.role for member in members))
