"""The invariants after every event of a long campaign: those of what has changed, and now and then all of them.

What has changed is not asked of the controller, which may have forgotten to say so, but seen: each world, role and
node has a key of what its invariants speak of, and is checked where the key is not what it was. What a key cannot show,
a replica say that moves while all that is counted stays as it is, comes up with the next full check at the latest.
"""

from __future__ import annotations

from flowdist.control.invariants import (
    check_budgets,
    check_incidents,
    check_job,
    check_node,
    check_role,
    check_room,
    check_sums,
    check_world,
)
from flowdist.control.state import JobState, Role, World
from flowdist.graph import Capacity

EVERY = 16  # events from one full check to the next

Key = tuple[object, ...]


class Watch:
    """Of one job. A controller that took over has another job: it is watched from the beginning."""

    def __init__(self, every: int = EVERY) -> None:
        self._every = every
        self._left = 0  # events until all is checked
        self._free: dict[str, Capacity] = {}
        self._usable: list[tuple[int, str]] = []
        self._keys: dict[tuple[str, str], Key] = {}

    def check(self, job: JobState) -> None:
        """AssertionError, with the names of what is wrong, when an invariant does not hold."""
        if self._left == 0 or job.outcome is not None:
            self._left = self._every
            check_job(job)
        self._left -= 1
        moved = self._moved(job)
        for name in moved:
            check_node(job, name, job.nodes[name])
        if moved:
            check_room(job)
        worlds = [world for world in job.worlds.values() if self._differs("world", world.name, _of_world(world))]
        for world in worlds:
            check_world(job, world)
        there = {replica.role for name in moved for replica in job.nodes[name].replicas}
        roles = [role for role in job.roles.values() if self._differs("role", role.spec.name, _of_role(role))]
        roles += [role for name, role in job.roles.items() if name in there and role not in roles]
        for role in roles:
            check_role(job, role)
        if roles or self._differs("due", "", tuple(job.due)):
            check_sums(job)
        if self._differs("job", "", (len(job.incidents), *job.open, job.ending)):
            check_budgets(job)
            check_incidents(job)
        elif job.open and worlds:
            check_incidents(job)

    def _differs(self, what: str, name: str, key: Key) -> bool:
        if self._keys.get((what, name)) == key:
            return False
        self._keys[what, name] = key
        return True

    def _moved(self, job: JobState) -> list[str]:
        """Nodes on which a seat was given or taken, that came, went, or take no more."""
        if job.free == self._free and job.usable == self._usable:
            return []
        was, up = self._free, dict.fromkeys(self._usable)
        moved = [name for name in job.nodes if job.free.get(name) != was.get(name)]
        moved += [name for name, node in job.nodes.items() if node.usable != ((node.order, name) in up)]
        self._free, self._usable = dict(job.free), list(job.usable)
        return list(dict.fromkeys(moved))


def _of_world(world: World) -> Key:
    what = (world.phase, world.generation, world.incident, world.retiring, world.members, world.notice is None)
    return (*what, world.spoken, *world.counts.values(), *world.stalls.values())


def _of_role(role: Role) -> Key:
    many = (role.seats, len(role.vacant), len(role.portless), len(role.waiting), len(role.leaving))
    return (*many, *role.seated.values(), *role.unseated.values())
