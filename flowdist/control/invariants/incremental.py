"""Incremental invariant checker: checks the part of the job that an event may have broken, and at intervals all of it.

`check_job` looks at everything, so that its calls in a job of n nodes with k events cost n * k. Most events touch one
replica and its node. The checker looks at what may have changed, and checks everything as often as it can afford:

    event    1     2     3   ...   33    34   ...         (a job of 1024 nodes, replicas and incidents; "paced")
    check   full  part  part ...  full  part ...

Three schedules share this code:

    all       Check everything at each check.
    paced     Check after each event. A small job (up to 128 nodes, replicas and incidents) is always checked in full.
              A larger one, of `size` nodes, replicas and incidents, is checked in full every size / 8 events, which
              keeps the total cost linear in the number of events. In between, check the nodes, replicas and worlds
              that the event and its effects name.
    changed   Check after each moment (all events of one time), for campaigns that run thousands of small jobs. Changes
              are found by comparing a key of each world, role and node with the last one, since a controller with a
              bug may not say what it changed. Every 32nd check is full.

A change that no partial check sees is found by the next full check. Its message (paced) says which event is the last
after which everything held.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from flowdist.control.invariants.invariants import (
    check_budgets,
    check_candidates,
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
from flowdist.control.protocol.effects import Effect
from flowdist.control.protocol.events import (
    CheckpointOffered,
    Event,
    NodeHeard,
    ReplicaProgressed,
    ReplicaSpent,
    ReplicaStepped,
)
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import format_duration
from flowdist.graph.capacity import Capacity

SMALL = 128  # nodes, replicas and incidents of a job that "paced" checks in full after each event
SHARE = 8  # "paced" checks a larger job in full once in so many events: its nodes, replicas and incidents / SHARE
EVERY = 32  # checks of "changed" from one full check to the next
PROGRESS = (
    ReplicaProgressed,
    ReplicaStepped,
    ReplicaSpent,
    CheckpointOffered,
    NodeHeard,
)  # events that change nothing that an invariant is about

Checks = Literal["all", "paced", "changed"]
Key = tuple[object, ...]


class InvariantChecker:
    """Incremental invariant checker for one job.

    Call `note` after each event. Call `check` after each event too, or, if `by_moment`, when all events of one time are
    handled. A controller that takes over needs a new checker, which begins with a full check, unless `by_moment`.

    Args:
        checks: The schedule: "all", "paced" or "changed"; see the module.
    """

    def __init__(self, checks: Checks = "all") -> None:
        self.checks: Checks = checks
        self.by_moment = checks == "changed"
        self._left = 0  # checks until the next full one
        self._is_due = True  # an event since the last check may have broken something
        self._n, self._now = 0, 0  # the number of the last event, and its time (ns)
        self._held: tuple[int, int] = (0, 0)  # the same of the last event after which a full check passed
        self._nodes: dict[NodeName, None] = {}  # named by events since the last check
        self._replicas: dict[ReplicaId, None] = {}
        self._keys = _Keys()

    def note(self, job: JobState, event: Event, effects: Iterable[Effect], n: int, now: int) -> None:
        """Record that the job has handled an event, so that the next `check` covers what the event may have changed.

        Args:
            job: The state after the event.
            event: The event.
            effects: The effects that the controller returned for it.
            n: The number of the event in the record.
            now: When the event was handled, in ns since the start of the job.
        """
        self._n, self._now = n, now
        if type(event) in PROGRESS and (self.by_moment or self._left > 0):
            return
        self._is_due = True
        if self.checks == "paced" and self._left > 1:
            self._note_named(job, (event, *effects))

    def check(self, job: JobState) -> None:
        """Check the job, in full or in part by the schedule; do nothing if no event has come that may break anything.

        Raises:
            AssertionError: An invariant does not hold; the text names what is wrong.
        """
        if not self._is_due:
            return
        self._is_due = False
        if self.by_moment:
            self._check_moment(job)
        else:
            self._check_event(job)

    def _check_event(self, job: JobState) -> None:
        self._left -= 1
        try:
            if self._left > 0:
                self._check_named(job)
                return
            check_job(job)
        except AssertionError as error:
            raise AssertionError(f"{error}{self._since()}") from error
        size = len(job.nodes) + len(job.replicas) + len(job.incidents)
        self._left = size // SHARE if size > SMALL and self.checks == "paced" else 0
        self._held = (self._n, self._now)

    def _since(self) -> str:
        """Return a text for an error that says between which events the fault arose; empty if at the last event."""
        number, at = self._held
        if self._n <= number + 1:
            return ""
        return f" (seen after event {self._n}; everything held after event {number}, at {format_duration(at)})"

    def _note_named(self, job: JobState, items: tuple[Event | Effect, ...]) -> None:
        for item in items:
            node, id = getattr(item, "node", None), getattr(item, "replica", None)
            if node in job.nodes:
                self._nodes[node] = None
            if id in job.replicas:
                self._replicas[id] = None

    def _check_named(self, job: JobState) -> None:
        nodes, replicas = self._nodes, self._replicas
        self._nodes, self._replicas = {}, {}
        for id in replicas:
            replica = job.replicas[id]
            check_replica(job, replica, job.roles[id.role])
            if self._keys.has_moved_on(job.worlds[replica.world]):
                check_world(job, job.worlds[replica.world])
            if replica.node is not None:
                nodes[replica.node] = None
        for name in nodes:
            if len(job.nodes[name].replicas) <= SMALL:
                check_node(job, name, job.nodes[name])
            check_candidates(job, name)

    def _check_moment(self, job: JobState) -> None:
        keys = self._keys
        moved, worlds, roles = keys.moved_nodes(job), keys.changed_worlds(job), keys.changed_roles(job)
        is_other = keys.has_other_incidents(job)
        if self._left == 0:
            self._left = EVERY - 1
            check_job(job)
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


class _Keys:
    """Keys of the nodes, worlds, roles and incidents of a job, to find those that have changed.

    A key holds the values by which a change is noticed. Each method compares the present keys with those that it found
    at its last call, and stores the present ones: asked again at once, it finds no change.
    """

    def __init__(self) -> None:
        self._free: dict[NodeName, Capacity] = {}
        self._usable: list[tuple[int, NodeName]] = []
        self._worlds: dict[str, Key] = {}
        self._roles: dict[str, Key] = {}
        self._incidents: Key = ()

    def has_moved_on(self, world: World) -> bool:
        """Return whether phase, generation, incident or retirement of the world have changed since the last call.

        Only then does the "paced" schedule check the world for an event that names one of its replicas: a check costs
        as much as the world is large, and each of its replicas is named in turn.
        """
        key = (world.phase, world.generation, world.incident, world.retiring)
        if self._worlds.get(world.name) == key:
            return False
        self._worlds[world.name] = key
        return True

    def moved_nodes(self, job: JobState) -> list[NodeName]:
        """Return the nodes whose free capacity has changed, or that came or became unusable, since the last call."""
        if job.free == self._free and job.usable == self._usable:
            return []
        turned = {name for _, name in {*self._usable} ^ {*job.usable}}
        moved = [name for name in job.nodes if name in turned or job.free.get(name) != self._free.get(name)]
        self._free, self._usable = dict(job.free), list(job.usable)
        return moved

    def changed_worlds(self, job: JobState) -> list[World]:
        """Return the worlds whose members, phases, stalls, incident or notice have changed since the last call."""
        known, changed = self._worlds, []
        for name, world in job.worlds.items():
            what = (
                world.phase,
                world.generation,
                world.incident,
                world.retiring,
                world.members,
            )
            key = (*what, world.notice is None, *world.counts.values(), *world.stalls.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(world)
        return changed

    def changed_roles(self, job: JobState) -> list[Role]:
        """Return the roles whose seats, or whose replicas by phase, have changed in number since the last call."""
        known, changed = self._roles, []
        for name, role in job.roles.items():
            many = (len(role.vacant), len(role.portless), len(role.waiting), len(role.leaving))
            key = (role.seats, *many, *role.seated.values(), *role.unseated.values())
            if known.get(name) != key:
                known[name] = key
                changed.append(role)
        return changed

    def has_other_incidents(self, job: JobState) -> bool:
        """Return whether incidents opened or closed, the job ends, or other deadlines are set since the last call."""
        key = (len(job.incidents), *job.open, job.ending, *job.due)
        if key == self._incidents:
            return False
        self._incidents = key
        return True
