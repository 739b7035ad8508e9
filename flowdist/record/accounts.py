"""Time accounts of a job: each nanosecond of each replica is in one bucket, and their sum is wall time x replicas.

The decisions of the controller move replicas from bucket to bucket. They do not show when a world works, and how much
of that work was kept: the caller reports both. The simulator knows them. `timesheet` infers them from the record of a
run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from flowdist.control.job.deadlines import Due
from flowdist.control.job.state import OVER_PHASES, JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.events import NodeJoined, ReplicaExited, ReplicaStopped
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
    "unsaved at the end",  # steps after the last checkpoint, when the job was ended or the record ends
    "detection",  # the replica could not continue, and the controller did not know yet
    "re-formation",  # from the incident to the start of the next attempt
    "back-off",
    "waiting",  # for gates, or for nodes
    "unknown",  # all of its world ran, and none of its workers has reported what it did
    "done",  # the replica had succeeded, or was ended for good
]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)
Spent = dict[str, dict[Bucket, int]]  # ns, by role and bucket


class Accounts:
    """Time accounts of one job: the present bucket of each replica, and the time that was spent in each bucket.

    `spent` holds nanoseconds by role and bucket, for each replica up to its last change of bucket. At first each
    replica is in `waiting`. A replica that works is in no bucket: `end_work` divides its time among buckets afterwards.
    """

    def __init__(self, job: JobState) -> None:
        self.spent: Spent = {name: dict.fromkeys(BUCKETS, 0) for name in job.roles}
        self._at: dict[ReplicaId, tuple[Bucket | Literal["work"], int]] = dict.fromkeys(job.replicas, ("waiting", 0))
        self._incidents = 0
        self._short: dict[str, None] = {}  # roles that are below their minimum
        self._over: dict[str, None] = {}  # worlds that have ended
        self._ending_ns: int | None = None  # when the end of the job was decided
        self._pending = {name: Due("pending", name) for name in job.roles}

    def move(self, replica: ReplicaId, to: Bucket, at: int) -> None:
        """Book the replica's time up to `at` in its present bucket, and put it in the bucket `to` from then on.

        If its last change is later than `at`, nothing is booked, and the new bucket begins at that change. It may not
        work.
        """
        bucket, since = self._at[replica]
        assert bucket != "work", f"{replica} works"
        if at > since:
            self.spent[replica.role][bucket] += at - since
            since = at
        self._at[replica] = (to, since)

    def bucket_of(self, replica: ReplicaId) -> Bucket | Literal["work"]:
        """Return the present bucket of the replica; `work` if it works: its bucket is known only when that ends."""
        return self._at[replica][0]

    def is_ending(self, at: int) -> bool:
        """Return whether the end of the job was decided by `at` (ns): from then on, no restart does work again."""
        return self._ending_ns is not None and at >= self._ending_ns

    def stop_serving(self, replica: ReplicaId, at: int) -> None:
        """Move a service's replica that ended at `at` to `detection`, if it served at all."""
        if self._at[replica][0] in ("productive", "stalled"):
            self.move(replica, "detection", at)

    def stand_still(self, replica: ReplicaId, at: int) -> None:
        """Move a service's replica from `productive` to `stalled`: it runs, and does nothing from `at` on."""
        if self._at[replica][0] == "productive":
            self.move(replica, "stalled", at)

    def serve_again(self, replica: ReplicaId, at: int) -> None:
        """Move a service's replica that stood still back to `productive`."""
        if self._at[replica][0] == "stalled":
            self.move(replica, "productive", at)

    def begin_work(self, members: Iterable[ReplicaId], now: int, restore_ns: int = 0) -> None:
        """Let the members work until `end_work`; `restore_ns` before now went into reading a checkpoint."""
        for replica in members:
            bucket, since = self._at[replica]
            if bucket == "start-up":
                self.transfer(replica.role, "start-up", "restore", min(restore_ns, now - since))
            self.move(replica, "done", now)  # no bucket yet: `end_work` says which
            self._at[replica] = ("work", now)

    def end_work(self, job: JobState, members: Iterable[ReplicaId], split: Mapping[Bucket, int], at: int) -> None:
        """Book the work of members of a world that has ended, and put each of them in its next bucket.

        `split` is how the time of each member since `begin_work` divides into buckets (ns). From `at` on, which may be
        before the controller noticed, a member is in `detection`. Once its world has an open incident, it is in
        `re-formation` from the opening of that incident on; once the end of the job is decided, it is `done` from that
        decision on.
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
        """Move `ns` nanoseconds of a role that are booked already from the bucket `source` to `target`."""
        self.spent[role][source] -= ns
        self.spent[role][target] += ns

    def hear(self, job: JobState, line: Record) -> None:
        """Book what an event of the record and its effects change; `job` is the state after the event."""
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
        elif type(event) is NodeJoined:  # ends that the agent could not report while it was cut off
            for item in event.inventory:
                if item.exited is not None and item.replica in job.replicas:
                    self._note_end(job, item.replica, now)
        if job.ending is not None and self._ending_ns is None:
            self._note_ending(now)
        if self._short or job.due.has_any(self._pending.values()):
            self._note_short(job, now)

    def _note_incidents(self, job: JobState, now: int) -> None:
        """Put the replicas of new incidents in `re-formation`, if they served, started up or could not continue."""
        for incident in job.incidents[self._incidents :]:
            for world in incident.worlds:
                for member in job.worlds[world].pool:  # a lost replica may be no member any more
                    bucket, since = self._at[member]
                    if bucket == "stalled" and incident.kind == "hang" and str(member) == incident.root:
                        self._at[member] = ("detection", since)  # only now it is known that it could not go on
                    if bucket in ("detection", "start-up", "productive", "stalled"):
                        self.move(member, "re-formation", now)
        self._incidents = len(job.incidents)

    def _note_ending(self, now: int) -> None:
        """Record that the end of the job is decided, and put replicas that no longer work in `done` from now on."""
        self._ending_ns = now
        for replica, (bucket, _) in list(self._at.items()):
            if bucket in ("detection", "start-up", "re-formation"):
                self.move(replica, "done", now)

    def _note_end(self, job: JobState, replica: ReplicaId, now: int) -> None:
        """Change the buckets after an attempt of the replica has ended.

        A replica that was still starting up goes to `re-formation` if its world has an incident or the job ends. One
        that was scaled down goes to `waiting`. A replica that does not run again goes to `done`; with a world that has
        ended all its replicas do.
        """
        world, bucket = job.worlds[job.replicas[replica].world], self._at[replica][0]
        has_failed, is_live = world.incident is not None or job.ending is not None, job.replicas[replica].is_live
        if bucket == "start-up" and not is_live:
            self.move(replica, "re-formation" if has_failed else "waiting", now)
        elif bucket == "detection" and world.phase == "waiting" and not has_failed:
            self.move(replica, "waiting", now)
        ended = [replica] if job.replicas[replica].phase in OVER_PHASES else []
        if world.phase in ("succeeded", "ended") and world.name not in self._over:
            self._over[world.name] = None
            ended = [other for other in world.pool if not job.replicas[other].is_live]
        for each in ended:
            if self._at[each][0] not in ("work", "done"):
                self.move(each, "done", now)
        if replica.role in self._short and self._at[replica][0] == "re-formation":
            self.move(replica, "waiting", now)  # its role has fallen below its minimum before it stopped

    def _leave_out(self, job: JobState, world: str, now: int) -> None:
        """Put in `waiting` the replicas of a world that get no node in the generation that starts now."""
        members = dict.fromkeys(job.worlds[world].members)
        for replica in job.worlds[world].pool:
            if replica not in members and self._at[replica][0] in ("re-formation", "detection"):
                self.move(replica, "waiting", now)

    def _leave_idle(self, job: JobState, replica: ReplicaId, now: int) -> None:
        """Book the back-off before the replica's next start as `back-off` instead of `re-formation`."""
        bucket, since = self._at[replica]
        number = job.worlds[job.replicas[replica].world].incident
        if bucket == "re-formation" and number is not None:
            self.transfer(replica.role, bucket, "back-off", min(job.incident(number).backoff_ns, now - since))

    def _note_short(self, job: JobState, now: int) -> None:
        """Put stopped replicas of a role in `waiting` below its minimum, and back in `re-formation` at it."""
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
        """Book the time of all replicas, of which none works, up to `now` in their present buckets."""
        for replica, (bucket, _) in list(self._at.items()):
            assert bucket != "work", f"{replica} works"
            self.move(replica, bucket, now)

    def spent_by(self, now: int, work: Mapping[ReplicaId, Mapping[Bucket, int]]) -> Spent:
        """Return ns by role and bucket up to `now`, and nothing is booked; `work` has the buckets of those at work."""
        spent = {name: dict(buckets) for name, buckets in self.spent.items()}
        for replica, (bucket, since) in self._at.items():
            parts = work[replica] if bucket == "work" else {bucket: now - since}
            for part, ns in parts.items():
                spent[replica.role][part] += ns
        return spent


def goodput_of(graph: RoleGraph, spent: Mapping[str, Mapping[Bucket, int]]) -> float | None:
    """Return the `productive_share` of the tasks, from 0 to 1, of ns by role and bucket. Services do not count."""
    return productive_share([spec.name for spec in graph.roles if spec.kind == "task"], spent)


def productive_share(tasks: Iterable[str], spent: Mapping[str, Mapping[Bucket, int]]) -> float | None:
    """Return the productive share, from 0 to 1, of the time of these roles before they were done; None if unknown.

    A role with unknown time is left out as a whole: what is known of it, such as its start-up, would be a share of
    nothing. The share is unknown if no role is left, or none of them has had any time.
    """
    total: Counter[Bucket] = Counter()
    for name in known_tasks(tasks, spent):
        total.update(spent[name])
    whole = total.total() - total["done"]
    return total["productive"] / whole if whole else None


def known_tasks(tasks: Iterable[str], spent: Mapping[str, Mapping[Bucket, int]]) -> list[str]:
    """Return those of these roles that have no unknown time: the goodput is theirs."""
    return [name for name in tasks if not spent[name].get("unknown")]
