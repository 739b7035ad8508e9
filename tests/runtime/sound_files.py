"""What summary.json and status.json of a run have to be: their types, and the relations between their fields.

Commands trust these files as long as nobody has changed them, so each run that a test plays is checked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from flowdist.control.job.parts import RoleOutcome
from flowdist.record.accounts import Bucket, productive_share
from flowdist.record.status import Count, Status, Step
from flowdist.runtime.saved_files import Seconds, SummaryEnd

ReplicaSeconds = Annotated[float, Meta(ge=0, le=1e18)]  # of all replicas of a role together
ReplicaName = Annotated[str, Meta(pattern=r"^[^/]+/\d{1,9}$")]
Unreported = Annotated[tuple[Literal["progress", "step numbers", "checkpoints"], ...], Meta(min_length=1, max_length=2)]
OPEN = "still open"  # result of an incident that lasted until the end
ROUNDING_S = 1e-6  # sums of times in seconds may differ by so much


class RoleSummary(msgspec.Struct, frozen=True):
    """Content of `roles` in summary.json, for one role. Only a simulation knows `lost_work_s`."""

    outcome: RoleOutcome | None
    restarts: Count
    charged: Count
    budget: Count | None
    generations: Count
    step: Step
    lost_work_s: ReplicaSeconds | UnsetType = UNSET
    used: Count = 0


class IncidentSummary(msgspec.Struct, frozen=True):
    """Content of `incidents` in summary.json, for one incident."""

    number: Count
    t_s: Seconds
    kind: str
    reason: str
    restarted: tuple[ReplicaName, ...]
    charged_to: str | None
    result: str
    took_s: Seconds | None
    first_step_s: Seconds | None
    stayed_in_place: tuple[ReplicaName, ...]
    moved: dict[ReplicaName, str]
    steps_again_s: Seconds | UnsetType | None = UNSET


class Unsaved(msgspec.Struct, frozen=True):
    """Content of `unsaved` in summary.json, for a checkpoint that was not completed; only a simulation knows it."""

    world: str
    reason: str


class Summary(SummaryEnd, frozen=True):
    """Content of summary.json, as far as commands use it."""

    roles: dict[str, RoleSummary]
    incidents: tuple[IncidentSummary, ...]
    causes: dict[str, Count]
    root_cause: str
    goodput: Annotated[float, Meta(ge=0, le=1)] | None
    tasks: tuple[str, ...]
    time_ns: dict[str, dict[Bucket, Count]]
    time_s: dict[str, dict[Bucket, ReplicaSeconds]]
    lost_work_s: dict[str, Seconds]  # of the worlds of each role
    not_reported: dict[str, Unreported] = msgspec.field(default_factory=dict)
    rates: tuple[str, ...] | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    unsaved: tuple[Unsaved, ...] = ()

    def __post_init__(self) -> None:
        """Check the relations between the fields. Raises ValueError if one of them does not hold."""
        _require(self.time_ns.keys() == self.roles.keys(), "each role has a time account, and nothing else has one")
        _require(_distinct(self.tasks) and set(self.tasks) <= self.roles.keys(), "the tasks are among the roles")
        _require(self.not_reported.keys() <= set(self.tasks), "only tasks report their work")
        _require(all(map(_distinct, self.not_reported.values())), "each kind of report is listed once")
        seconds = {name: {each: ns / 1e9 for each, ns in spent.items()} for name, spent in self.time_ns.items()}
        _require(self.time_s == seconds, "the time accounts are the same in seconds and nanoseconds")
        _require(self.goodput == productive_share(self.tasks, self.time_ns), "the goodput follows from the times")
        _require(self.lost_work_s.keys() == self.roles.keys(), "the lost work of each role is known")
        lost = {name: spent.get("lost work", 0) + ROUNDING_S for name, spent in self.time_s.items()}
        _require(all(self.lost_work_s[name] <= lost[name] for name in lost), "a world loses no more than its members")
        _require((self.rates is UNSET) == (self.seed is UNSET), "rates have a seed")
        _require(self.causes == Counter(each.kind for each in self.incidents), "each incident has one cause")
        for number, incident in enumerate(self.incidents, 1):
            _require(incident.number == number, "the incidents are numbered from 1 on")
            self._check_incident(incident)

    def _check_incident(self, incident: IncidentSummary) -> None:
        replicas = [*incident.restarted, *incident.stayed_in_place]
        _require(_distinct(replicas), "an incident restarts a replica once, or leaves it in place")
        _require(all(_role_of(name) in self.roles for name in replicas), "each replica is one of a role")
        _require(incident.moved.keys() <= set(replicas), "a replica that moves is restarted")
        _require(incident.charged_to is None or incident.charged_to in self.roles, "a role pays for an incident")
        _require((incident.took_s is None) == (incident.result == OPEN), "an incident that is over has an end")
        _require(not incident.first_step_s or incident.result != OPEN, "the first step is after the end")
        until = incident.t_s + max(incident.took_s or 0, incident.first_step_s or 0)
        _require(until <= self.lasted_s + ROUNDING_S, "no incident is later than the end of the job")


class SavedStatus(Status, frozen=True):
    """Content of status.json."""

    def __post_init__(self) -> None:
        """Check the relations between the fields. Raises ValueError if one of them does not hold."""
        roles = {role.name: role for role in self.roles}
        nodes = [node.name for node in self.nodes]
        _require(_distinct(role.name for role in self.roles) and _distinct(nodes), "roles and nodes have own names")
        for role in self.roles:
            _require(role.min_replicas <= role.target <= role.max_replicas, "the target is between the limits")
        self._check_replicas(set(nodes))
        _require(all(each.role in roles for each in self.restarts), "each restart is one of a role")
        is_open = Counter(incident.kind for incident in self.open_incidents)
        _require(is_open <= Counter(self.incidents), "open incidents are among those that are counted")
        times = [incident.opened_ns for incident in self.open_incidents]
        _require(max(times, default=0) <= self.now_ns, "no incident is later than the status")
        said = [*(each.t_ns for each in self.said), self.now_ns]
        _require(all(earlier <= later for earlier, later in pairwise(said)), "decisions are in the order of time")
        if self.time_ns or self.goodput is not None:
            _require(self.time_ns.keys() == roles.keys(), "each role has a time account, and nothing else has one")
            share = productive_share([role.name for role in self.roles if role.kind == "task"], self.time_ns)
            _require(self.goodput == share, "the goodput follows from the times")

    def _check_replicas(self, nodes: set[str]) -> None:
        """Check that each replica is one of a role and on a known node, and that roles count their replicas."""
        _require(_distinct(each.name for each in self.replicas), "replicas have own names")
        _require(all(each.node is None or each.node in nodes for each in self.replicas), "each node is listed")
        found = Counter((_role_of(each.name), str(each.phase)) for each in self.replicas)
        counted = Counter(
            {(role.name, str(phase)): count for role in self.roles for phase, count in role.phases.items()}
        )
        _require(found == counted, "each role counts its replicas by phase")
        for role in self.roles:
            _require(sum(role.phases.values()) == role.max_replicas, "each role has all its replicas")


def _require(holds: bool, relation: str) -> None:
    if not holds:
        raise ValueError(f"the content contradicts itself: it does not hold that {relation}")


def _distinct(names: Iterable[str]) -> bool:
    found = list(names)
    return len(set(found)) == len(found)


def _role_of(replica: str) -> str:
    return replica.partition("/")[0]
