"""Time accounts of a job: each nanosecond of each replica is in one bucket, and their sum is wall time x replicas.

The decisions of the controller move replicas from bucket to bucket. Two things only the caller knows: when a world
works, and how much of that work was kept. The simulator knows both. `timesheet` infers them from the record of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import OVER_PHASES, JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import ReplicaExited, ReplicaStopped
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleGraph
from flowdist.record.journal import Record

Bucket = Literal[
    "productive",  # steps that were kept; for a service: it serves
    "start-up",
    "restore",
    "checkpoint",
    "stalled",  # a dependency was missing, or a member was slow or paused
    "lost work",  # steps that had to be done again
    "detection",  # it could not continue, and the controller did not know yet
    "re-formation",  # from the incident to the start of the next attempt
    "back-off",
    "waiting",  # for gates, or for nodes
    "done",  # it had succeeded, or was ended for good
]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
Spent = dict[str, dict[Bucket, int]]  # ns, by role and bucket


class Accounts:
    """Time accounts of one job. `spent` holds nanoseconds by role and bucket, up to the last change of each replica."""

    def __init__(self, job: JobState) -> None:
        self.spent: Spent = {name: dict.fromkeys(BUCKETS, 0) for name in job.roles}
        self._at: dict[ReplicaId, tuple[Bucket | Literal["work"], int]] = dict.fromkeys(job.replicas, ("waiting", 0))
        self._incidents = 0
        self._short: dict[str, None] = {}  # roles that are below their minimum
        self._over: dict[str, None] = {}  # worlds that have ended
        self._ending_ns: int | None = None  # when the end of the job was decided
        self._pending = {name: Due("pending", name) for name in job.roles}

    def move(self, replica: ReplicaId, to: Bucket, at: int) -> None:
        """Move a replica to a bucket from time `at` on, or from its last change on if that is later.

        Only `end_work` ends work.
        """
        bucket, since = self._at[replica]
        assert bucket != "work", f"{replica} works"
        if at > since:
            self.spent[replica.role][bucket] += at - since
            since = at
        self._at[replica] = (to, since)

    def bucket_of(self, replica: ReplicaId) -> Bucket | Literal["work"]:
        """Return the bucket of the replica; `work` is split into buckets when it ends."""
        return self._at[replica][0]

    def stop_serving(self, replica: ReplicaId, at: int) -> None:
        """Note that a service has ended, whether it was stopped or not."""
        if self._at[replica][0] == "productive":
            self.move(replica, "detection", at)

    def begin_work(self, members: Iterable[ReplicaId], now: int, restore_ns: int = 0) -> None:
        """Note that the members of a world begin to work.

        Args:
            members: The members that work.
            now: Nanoseconds since the start of the job.
            restore_ns: How much of the end of their start-up was the reading of a checkpoint.
        """
        for replica in members:
            bucket, since = self._at[replica]
            if bucket == "start-up":
                self.transfer(replica.role, "start-up", "restore", min(restore_ns, now - since))
            self.move(replica, "done", now)  # no bucket yet: `end_work` says which
            self._at[replica] = ("work", now)

    def end_work(self, job: JobState, members: Iterable[ReplicaId], split: Mapping[Bucket, int], at: int) -> None:
        """Note that a segment of work is over.

        Args:
            job: The state of the job.
            members: The members that worked.
            split: What the time of each of them was spent on, in nanoseconds. The sum is the length of the segment.
            at: When the work ended, which may be before the controller noticed.
        """
        for replica in members:
            bucket, since = self._at[replica]
            assert bucket == "work" and since + sum(split.values()) == at, f"{replica}: {split} since {since}"
            for part, ns in split.items():
                self.spent[replica.role][part] += ns
            self._at[replica] = ("detection", at)
            number = job.worlds[job.replicas[replica].world].incident
            if self._ending_ns is not None:
                self.move(replica, "done", self._ending_ns)
            elif number is not None:
                self.move(replica, "re-formation", job.incident(number).opened_ns)

    def transfer(self, role: str, source: Bucket, target: Bucket, ns: int) -> None:
        """Move time of a role that is booked already to another bucket."""
        self.spent[role][source] -= ns
        self.spent[role][target] += ns

    def hear(self, job: JobState, line: Record) -> None:
        """Book what the decision of the controller in one line changes; `job` is the state after it."""
        now, event = line.t_ns, line.event
        for effect in line.effects:
            if type(effect) is StartReplica:
                self._leave_idle(job, effect.replica, now)
                self.move(effect.replica, "start-up", now)
                if effect.group_rank == 0:
                    self._leave_out(job, effect.world, now)
        if len(job.incidents) > self._incidents:
            self._note_incidents(job, now)
        if type(event) is ReplicaStopped or type(event) is ReplicaExited:
            self._note_end(job, event.replica, now)
        if job.ending is not None and self._ending_ns is None:
            self._note_ending(now)
        if self._short or job.due.has_any(self._pending.values()):
            self._note_short(job, now)

    def _note_incidents(self, job: JobState, now: int) -> None:
        for incident in job.incidents[self._incidents :]:
            for world in incident.worlds:
                for member in job.worlds[world].pool:  # a lost replica may be no member any more
                    if self._at[member][0] in ("detection", "start-up", "productive"):
                        self.move(member, "re-formation", now)
        self._incidents = len(job.incidents)

    def _note_ending(self, now: int) -> None:
        self._ending_ns = now
        for replica, (bucket, _) in list(self._at.items()):
            if bucket in ("detection", "start-up", "re-formation"):
                self.move(replica, "done", now)

    def _note_end(self, job: JobState, replica: ReplicaId, now: int) -> None:
        """Book the end of an attempt, and of what does not run again: the replica, or its whole world."""
        if self._at[replica][0] == "start-up" and not job.replicas[replica].is_live:
            is_back = job.worlds[job.replicas[replica].world].incident is not None  # else it was retired
            self.move(replica, "re-formation" if is_back else "waiting", now)
        world = job.worlds[job.replicas[replica].world]
        ended = [replica] if job.replicas[replica].phase in OVER_PHASES else []
        if world.phase in ("succeeded", "ended") and world.name not in self._over:
            self._over[world.name] = None
            ended = [other for other in world.pool if not job.replicas[other].is_live]
        for each in ended:
            if self._at[each][0] not in ("work", "done"):
                self.move(each, "done", now)

    def _leave_out(self, job: JobState, world: str, now: int) -> None:
        """Book as waiting the replicas that are no members of the generation that starts: they wait for a node."""
        members = dict.fromkeys(job.worlds[world].members)
        for replica in job.worlds[world].pool:
            if replica not in members and self._at[replica][0] in ("re-formation", "detection"):
                self.move(replica, "waiting", now)

    def _leave_idle(self, job: JobState, replica: ReplicaId, now: int) -> None:
        """Move the back-off out of the time from an incident to the next start."""
        bucket, since = self._at[replica]
        number = job.worlds[job.replicas[replica].world].incident
        if bucket == "re-formation" and number is not None:
            self.transfer(replica.role, bucket, "back-off", min(job.incident(number).backoff_ns, now - since))

    def _note_short(self, job: JobState, now: int) -> None:
        """Book as waiting the replicas of a role that do not run while the role is below its minimum."""
        for name, due in self._pending.items():
            is_short = due in job.due
            if is_short == (name in self._short):
                continue
            self._short.pop(name, None)
            if is_short:
                self._short[name] = None
            for replica in job.roles[name].replicas:
                if (
                    self._at[replica][0] == ("re-formation" if is_short else "waiting")
                    and job.replicas[replica].attempt
                ):
                    self.move(replica, "waiting" if is_short else "re-formation", now)

    def close(self, now: int) -> None:
        """Book everything up to now. All work has to be ended before."""
        for replica, (bucket, _) in list(self._at.items()):
            assert bucket != "work", f"{replica} works"
            self.move(replica, bucket, now)

    def spent_by(self, now: int, work: Mapping[ReplicaId, Mapping[Bucket, int]]) -> Spent:
        """Return `spent` as it would be after `close`, without booking anything.

        Args:
            now: Nanoseconds since the start of the job.
            work: For each replica that works, what the time of its segment was spent on so far.
        """
        spent = {name: dict(buckets) for name, buckets in self.spent.items()}
        for replica, (bucket, since) in self._at.items():
            parts = work[replica] if bucket == "work" else {bucket: now - since}
            for part, ns in parts.items():
                spent[replica.role][part] += ns
        return spent


def goodput_of(graph: RoleGraph, spent: Mapping[str, Mapping[Bucket, int]]) -> float:
    """Return the share of productive time in the time of all tasks before their end, from 0 to 1."""
    tasks = [spec.name for spec in graph.roles if spec.kind == "task"]
    total = sum(ns for name in tasks for bucket, ns in spent[name].items() if bucket != "done")
    return sum(spent[name]["productive"] for name in tasks) / max(total, 1)
