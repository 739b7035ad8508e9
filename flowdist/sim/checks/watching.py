"""The invariants in a long campaign: after each moment those of what has changed, and now and then all of them.

What has changed is not asked of the controller, which may have forgotten to say so, but seen: each world, role and
node has a key of what its invariants speak of, and is checked where the key is not what it was. What a key cannot show,
a replica say that moves while all that is counted stays as it is, comes up with the next full check at the latest.
"""

from __future__ import annotations

from flowdist.control.invariants.invariants import (
    check_budgets,
    check_incidents,
    check_job,
    check_node,
    check_place,
    check_replica,
    check_role,
    check_sums,
    check_world,
)
from flowdist.control.job.state import JobState, Role, World
from flowdist.control.protocol.events import CheckpointOffered, Event, NodeHeard, ReplicaProgressed
from flowdist.graph import Capacity

EVERY = 32  # checks from one of everything to the next
PROGRESS = (ReplicaProgressed, CheckpointOffered, NodeHeard)  # no invariant is about what news of progress change

Key = tuple[object, ...]


class Watch:
    """Of one job; or of its equal, that of a controller that took over and is where the last one was."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._left = 0  # checks until all is looked at
        self._is_due = True
        self._free: dict[str, Capacity] = {}
        self._usable: list[tuple[int, str]] = []
        self._worlds: dict[str, Key] = {}
        self._roles: dict[str, Key] = {}
        self._job: Key = ()

    def note(self, event: Event) -> None:
        """An event was handled."""
        if type(event) not in PROGRESS:
            self._is_due = True

    def check(self, job: JobState) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold."""
        if not self._is_due:
            return
        self._is_due = False
        moved, worlds, roles = self._moved(job), self._changed_worlds(job), self._changed_roles(job)
        key = (len(job.incidents), *job.open, job.ending, *job.due)
        is_other, self._job = key != self._job, key
        if self._left == 0:
            self._left = self._every - 1
            check_job(job)  # all that could have changed, and the rest
            return
        self._left -= 1
        for name in moved:
            check_node(job, name, job.nodes[name])
            check_place(job, name)
            for id in job.nodes[name].replicas:
                check_replica(job, job.replicas[id], job.roles[id.role])
        for world in worlds:
            check_world(job, world)
        for role in roles:
            check_role(job, role)
        if is_other:
            check_budgets(job)
        if is_other or roles:
            check_sums(job)
        if is_other or roles or moved or worlds:
            check_incidents(job)

    def _moved(self, job: JobState) -> list[str]:
        """Nodes on which a seat was given or taken, that came, went, or take no more."""
        if job.free == self._free and job.usable == self._usable:
            return []
        turned = {name for _, name in {*self._usable} ^ {*job.usable}}
        moved = [name for name in job.nodes if name in turned or job.free.get(name) != self._free.get(name)]
        self._free, self._usable = dict(job.free), list(job.usable)
        return moved

    def _changed_worlds(self, job: JobState) -> list[World]:
        known, changed = self._worlds, []
        for name, world in job.worlds.items():
            what = (world.phase, world.generation, world.incident, world.retiring, world.members, world.spoken)
            key = (*what, world.notice is None, *world.counts.values(), *world.stalls.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(world)
        return changed

    def _changed_roles(self, job: JobState) -> list[Role]:
        known, changed = self._roles, []
        for name, role in job.roles.items():
            many = (len(role.vacant), len(role.portless), len(role.waiting), len(role.leaving))
            key = (role.seats, *many, *role.seated.values(), *role.unseated.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(role)
        return changed
