"""Where the time went: each nanosecond of each replica is in one bucket; together they are wall time x replicas.

Live accounts: whoever sees a change moves the replica on. A stretch of work is split when it ends: only then it is
known what of it was kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from flowdist.control.deadlines import Due
from flowdist.control.effects import StartReplica
from flowdist.control.events import ReplicaExited
from flowdist.control.history import Record
from flowdist.control.ids import ReplicaId
from flowdist.control.state import JobState
from flowdist.sim.workload import WorldModel

Bucket = Literal[
    "productive",  # steps that were kept; of a service: it serves
    "start-up",
    "restore",
    "checkpoint",
    "stalled",  # a dependency was away, a member was slow or paused
    "lost work",  # steps that had to be done again
    "detection",  # it could not go on, and control did not know yet
    "re-formation",  # from the incident to the start of the next attempt
    "back-off",
    "waiting",  # for gates, or for nodes
    "done",  # it had finished, or was ended for good
]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)


class Accounts:
    """`spent` is in ns, by role and bucket."""

    def __init__(self, job: JobState) -> None:
        self.spent: dict[str, dict[Bucket, int]] = {name: dict.fromkeys(BUCKETS, 0) for name in job.roles}
        self._at: dict[ReplicaId, tuple[Bucket | Literal["work"], int]] = dict.fromkeys(job.replicas, ("waiting", 0))
        self._incidents = 0
        self._short: dict[str, None] = {}  # roles that are below their minimum
        self._pending = {name: Due("pending", name) for name in job.roles}

    def _move(self, replica: ReplicaId, to: Bucket | Literal["work"], now: int) -> None:
        bucket, since = self._at[replica]
        if bucket != "work":
            self.spent[replica.role][bucket] += now - since
        self._at[replica] = (to, now)

    def serves(self, replica: ReplicaId, now: int) -> None:
        """A service has started up."""
        self._move(replica, "productive", now)

    def stopped_working(self, replica: ReplicaId, now: int) -> None:
        """A service is gone, asked or not."""
        if self._at[replica][0] == "productive":
            self._move(replica, "detection", now)

    def begins(self, model: WorldModel, now: int) -> None:
        """A world begins to step; the end of its start-up was the reading of its checkpoint.

        Steps that were lost with the last generation, and are in the memory of a survivor, were not lost.
        """
        for replica in model.left if model.regained else ():
            self.spent[replica.role]["productive"] += model.regained * model.pace.workload.step_ns
            self.spent[replica.role]["lost work"] -= model.regained * model.pace.workload.step_ns
        restore = model.pace.workload.restore_ns if model.durable else 0
        for replica in model.members:
            bucket, since = self._at[replica]
            if bucket == "start-up":
                part = min(restore, now - since)
                self.spent[replica.role]["restore"] += part
                self.spent[replica.role]["start-up"] -= part
            self._move(replica, "work", now)

    def halts(self, model: WorldModel, now: int) -> None:
        """A stretch of work is over; called before the model forgets it."""
        assert model.begun_ns is not None
        productive, lost, checkpoint = model.split(now)
        stalled = now - model.begun_ns - productive - lost - checkpoint
        for replica in model.members:
            spent = self.spent[replica.role]
            spent["productive"] += productive
            spent["lost work"] += lost
            spent["checkpoint"] += checkpoint
            spent["stalled"] += stalled
            self._move(replica, "detection", now)

    def hear(self, job: JobState, line: Record) -> None:
        """Control has decided something."""
        now = line.t_ns
        for effect in line.effects:
            if isinstance(effect, StartReplica):
                self._leave_idle(job, effect.replica, now)
                self._move(effect.replica, "start-up", now)
                if effect.group_rank == 0:
                    self._leave_out(job, effect.world, now)
        for incident in job.incidents[self._incidents :] if len(job.incidents) > self._incidents else ():
            for world in incident.worlds:
                for member in job.worlds[world].members:
                    if self._at[member][0] in ("detection", "start-up", "productive"):
                        self._move(member, "re-formation", now)
        self._incidents = len(job.incidents)
        if isinstance(line.event, ReplicaExited) and job.replicas[line.event.replica].phase == "succeeded":
            self._move(line.event.replica, "done", now)
        if self._short or len(job.due):
            self._note_short(job, now)

    def _leave_out(self, job: JobState, world: str, now: int) -> None:
        """Whoever is no member of the generation that starts waits for a node."""
        members = dict.fromkeys(job.worlds[world].members)
        for replica in job.worlds[world].pool:
            if replica not in members and self._at[replica][0] in ("re-formation", "detection"):
                self._move(replica, "waiting", now)

    def _leave_idle(self, job: JobState, replica: ReplicaId, now: int) -> None:
        """Of the time from an incident to the next start, the back-off was asked for."""
        bucket, since = self._at[replica]
        number = job.worlds[job.replicas[replica].world].incident
        if bucket == "re-formation" and number is not None:
            part = min(job.incident(number).backoff_ns, now - since)
            self.spent[replica.role]["back-off"] += part
            self.spent[replica.role]["re-formation"] -= part

    def _note_short(self, job: JobState, now: int) -> None:
        """While a role is below its minimum, whoever of it does not run waits for nodes."""
        for name, due in self._pending.items():
            is_short = due in job.due
            if is_short == (name in self._short):
                continue
            role = job.roles[name]
            self._short.pop(name, None)
            if is_short:
                self._short[name] = None
            for replica in role.replicas:
                bucket = self._at[replica][0]
                if bucket == ("re-formation" if is_short else "waiting") and job.replicas[replica].attempt:
                    self._move(replica, "waiting" if is_short else "re-formation", now)

    def close(self, models: Iterable[WorldModel], now: int) -> None:
        """The end of the simulation: everything is booked up to now."""
        for model in models:
            if model.begun_ns is not None:
                self.halts(model, now)
        for replica in list(self._at):
            self._move(replica, self._at[replica][0], now)
