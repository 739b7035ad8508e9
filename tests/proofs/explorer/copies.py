"""Copies of the controller's and agents' state, and the keys by which two states count as one.

A key holds only what decides about the future: times relative to now and only as far back as any rule reads them,
incidents by their index among those that can still matter, and no text. A field that `SKIPPED` and `SPECIAL` do not
name is part of the key as it is. That is safe: at worst, two states with the same future are explored separately.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec

from flowdist.control.agent.agent import Agent
from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.job.deadlines import INCIDENT_DUES, Due
from flowdist.control.job.facts import Deferred
from flowdist.control.job.state import Charge, JobState, PastFailure, Replica, World
from flowdist.control.protocol import agent_io as io
from flowdist.graph import RestartPolicy, RoleGraph
from tests.proofs.explorer.vaults import VaultState

T = TypeVar("T")

OURS = ("flowdist.", "tests.proofs.")  # modules whose classes have state that is copied and enters the keys

SKIPPED = {
    # Fields that are text, are the same in every state of one job, enter the key in another form, or are counters that
    # follow from other fields and that the invariants recompute.
    "JobState": (
        *(
            "graph",
            "now",
            "ending_reason",
            "ending_failed",
            "effects",
            "incidents",
            "restores",
            "open",
            "due",
            "node_order",
            "free",
            "live_at",
        ),
        *("touched", "touched_roles", "unsatisfied", "placement_changed", "candidate_indexes", "leaving"),
    ),
    "Role": (
        *("spec", "order", "need", "depth", "worlds", "replicas", "dependents", "upstream"),
        *("pending", "seated", "unseated", "seats", "portless", "candidates", "waiting", "leaving", "vacant"),
        "has_stepped",
    ),
    "World": ("roles", "pool", "order", "counts", "stalls", "stepped_ns", "unstepped_in", "has_state", "states"),
    "Replica": ("procs", "starts_in_place", "exited"),
    "Incident": (
        *("number", "root", "reason", "closed_ns", "result", "lost", "stayed", "moved", "unstepped", "stepped_ns"),
    ),
    "Node": ("spec", "free", "order", "lost_because", "stands_still", "stopped"),
    "Notice": ("because",),
    "Attempt": ("role", "started_ns"),
    "Agent": ("spec", "graph", "address", "_now", "_out", "due_at_ns"),
    "Lease": ("_options", "_lasts_ns"),
}


def copy_of(value: T) -> T:
    """Return a deep copy of a controller, its sessions, or an agent state.

    The copy shares only frozen values (structs, tuples) with the original. An object that the original refers to twice
    is copied once.
    """
    copied: T = _copier(type(value))(value, {})
    return copied


Memo = dict[int, Any]  # finished copies, by id() of the original
Copier = Callable[[Any, Memo], Any]

_COPIERS: dict[Any, Copier] = {}
_ATOMS = (str, int, float, bool, bytes, type(None))


def _copier(kind: Any) -> Copier:
    found = _COPIERS.get(kind)
    if found is None:
        found = _COPIERS[kind] = _new_copier(kind)
    return found


def _new_copier(kind: Any) -> Copier:
    """Return the function that copies values of type `kind`.

    Dicts, lists and the mutable classes of flowdist and of the explorer are copied with all that they hold. Sets, and
    subclasses of dict and list, are copied without their items. All other values count as frozen, and are not copied.
    """
    if kind is dict:
        return _copy_dict
    if kind is list:
        return lambda value, memo: [_copier(type(item))(item, memo) for item in value]
    if issubclass(kind, dict | list | set):
        return lambda value, memo: value.copy()
    if not kind.__module__.startswith(OURS) or issubclass(kind, tuple | msgspec.Struct):
        return lambda value, memo: value
    names = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None

    def copy(value: Any, memo: Memo) -> Any:
        copied = memo.get(id(value))
        if copied is None:
            copied = memo[id(value)] = object.__new__(kind)
            for name in names if names is not None else vars(value):
                item = getattr(value, name)
                setattr(copied, name, item if isinstance(item, _ATOMS) else _copier(type(item))(item, memo))
        return copied

    return copy


def _copy_dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    """Return a copy of a dict whose values all have one type; the keys are frozen."""
    first = next(iter(value.values()), None)
    if isinstance(first, _ATOMS):
        return value.copy()
    return {name: _copier(type(item))(item, memo) for name, item in value.items()}


@cache
def _kept_fields(kind: Any) -> tuple[str, ...]:
    """Return the names of the fields of a dataclass that enter the key."""
    skipped = SKIPPED.get(kind.__name__, ())
    return tuple(field.name for field in fields(kind) if field.name not in skipped)


def _policies(policy: RestartPolicy | None) -> list[RestartPolicy]:
    """Return the policy and all policies that it escalates to."""
    return [policy, *_policies(policy.wider)] if policy is not None else []


class Keys:
    """Maker of keys for the controllers and agents of one job. Values with equal keys have the same future.

    In all methods, `now` is the time on the clock of that controller or agent, in ns.
    """

    def __init__(self, graph: RoleGraph) -> None:
        options = graph.options
        policies = [policy for role in graph.roles for policy in _policies(role.restart)]
        self._cause_window_ns = options.cause_window_ns
        self._charges_ns = max((policy.within_ns or 0 for policy in policies), default=0)
        self._failures_ns = options.bad_node_window_ns
        self._looks_back_ns = {  # ages above these make no difference
            "formed_ns": max(options.min_uptime_ns, *(role.cooldown_ns for role in graph.roles)),
            "last_counted_ns": max((policy.backoff_reset_ns for policy in policies), default=0),
            "started_ns": options.cause_window_ns,
            "opened_ns": options.cause_window_ns + 1,
            "acked_ns": options.lease_ns,
            "answered_ns": options.lease_ns,
            "versions_reported_ns": options.heartbeat_ns,
            "refused_ns": options.lease_ns,
            "outage_since_ns": options.controller_outage_ns,
        }
        self._now = 0
        self._places: dict[int, int] = {}  # index of each incident that still matters, by its number

    def of_controller(self, controller: Controller, sessions: Sessions, now: int) -> list[Any]:
        """Return the key of a controller with its sessions."""
        job, detector = controller.state, sessions.detector
        since = now - self._cause_window_ns
        recent = [incident for incident in job.incidents if incident.is_open or incident.opened_ns >= since]
        self._now = now
        self._places = {incident.number: place for place, incident in enumerate(recent)}
        due = sorted((*self._named(due), (job.due.at(due) or 0) - now) for due in job.due)
        incidents = [(*self._fields(incident), list(incident.lost)) for incident in recent]
        until = sorted((node, max(until - now, 0)) for node, until in detector._until_ns.items())
        suspect_at = sorted((node, max(at - now, 0)) for node, at in detector._suspect_at_ns.items())
        unheard = [sorted(detector._suspected), sorted(detector._silent)]
        links = [until, suspect_at, *unheard, sessions.epoch, sorted(sessions._incarnations.items())]
        return [self._fields(job), self._unsettled(job), due, incidents, links]

    def _unsettled(self, job: JobState) -> list[Any]:
        """Return what settling has still to visit; empty once the job ends, because settling ignores it then."""
        if job.ending is not None:
            return []
        return [sorted(job.touched), sorted(job.touched_roles), sorted(job.unsatisfied), job.placement_changed]

    def of_agent(self, agent: Agent, now: int) -> list[Any]:
        """Return the key of an agent."""
        self._now = now
        return self._attributes(agent)

    def of_vault(self, vault: VaultState) -> list[Any]:
        """Return the key of the process of a vault."""
        return self._fields(vault)

    def _named(self, due: Due) -> tuple[str, str]:
        """Return the name of a deadline as it enters the key: an incident by its index among those that matter."""
        of_incident = due.what in INCIDENT_DUES
        return due.what, str(self._places[int(due.name)]) if of_incident else due.name

    def _fields(self, item: Any) -> list[Any]:
        """Return the key of a dataclass: the values of its kept fields."""
        kind: Any = type(item)
        return [self._value(item, name) for name in _kept_fields(kind)]

    def _attributes(self, item: Any) -> list[Any]:
        """Return the key of an object of another class: the values of its attributes that `SKIPPED` does not name."""
        skipped = SKIPPED.get(type(item).__name__, ())
        return [self._value(item, name) for name in vars(item) if name not in skipped]

    def _value(self, item: Any, name: str) -> Any:
        """Return the field `name` of an item as it enters the key: a past time as an age, a future one as time left."""
        value = getattr(item, name)
        if value is None or value is True or value is False:
            return value
        if (special := SPECIAL.get(name)) is not None:
            return special(self, item, value)
        if (limit_ns := self._looks_back_ns.get(name)) is not None:
            return min(self._now - value, limit_ns)
        if name.endswith("_at_ns"):
            return max(value - self._now, 0)
        return self._plain(value)

    def _incident(self, item: Any, value: Any) -> Any:
        return self._places[value] if isinstance(item, World) else self._plain(value)

    def _charges(self, item: Any, charges: list[Charge]) -> list[tuple[int, int]]:
        return sorted((charge.level, self._charge_age(charge.opened_ns)) for charge in charges)

    def _spent(self, item: Any, spent: dict[int, list[int]]) -> list[tuple[int, int]]:
        return sorted((level, self._charge_age(opened)) for level, times in spent.items() for opened in times)

    def _charge_age(self, opened_ns: int) -> int:
        """Return the age of a charge, cut off at the longest budget window."""
        return min(self._now - opened_ns, self._charges_ns)

    def _recent(self, item: Any, numbers: list[int]) -> list[int]:
        return [self._places[number] for number in numbers if number in self._places]

    def _failures(self, item: Any, failures: list[PastFailure]) -> list[list[Any]]:
        recent = [failure for failure in failures if self._now - failure.at_ns < self._failures_ns]
        return [[self._now - failure.at_ns, failure.kind, failure.replica, failure.node] for failure in recent]

    def _stalled(self, item: Any, value: int) -> int | None:
        return self._now - value if item.stalled else None

    def _stop_grace(self, item: Any, value: Any) -> Any:
        """Return the grace of an attempt, or of a replica that is stopping; None for any other replica."""
        return self._plain(value) if item.phase == "stopping" or not isinstance(item, Replica) else None

    def _deferred(self, item: Any, deferred_failures: list[Deferred]) -> list[list[Any]]:
        return [self._deferred_failure(deferred) for deferred in deferred_failures]

    def _deferred_failure(self, deferred: Deferred) -> list[Any]:
        failure, *flags, own = deferred
        facts = [failure.replica, failure.kind, failure.exit_code, failure.signal, failure.node, failure.was_told]
        facts.append(failure.has_timed_out)
        return [self._now - failure.at_ns, *facts, *flags, self._places.get(own) if own is not None else None]

    def _suspects(self, item: Any, suspects: dict[str, int]) -> list[tuple[str, int]]:
        return [(node, self._now - since_ns) for node, since_ns in suspects.items()]

    def _copies(self, item: Any, copies: dict[Any, Any]) -> list[Any]:
        """Return copies by their names, whatever the order in which they came: it decides only who is named first."""
        return sorted((name, self._plain(copy)) for name, copy in copies.items())

    def _shards(self, item: Any, shards: dict[io.CopyStored, None]) -> list[Any]:
        """Return the names of shards in a vault, whatever their order."""
        return sorted((shard.generation, shard.rank) for shard in shards)

    def _plain(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is dict:
            return [(name, self._plain(item)) for name, item in value.items()]
        if is_dataclass(kind):
            return self._fields(value)
        if kind.__module__.startswith(OURS) and not isinstance(value, tuple | msgspec.Struct):
            return self._attributes(value)
        return value


SPECIAL: dict[str, Callable[[Keys, Any, Any], Any]] = {  # how a field enters the key, by its name
    "incident": Keys._incident,
    "charges": Keys._charges,
    "spent": Keys._spent,
    "lost_in": Keys._recent,
    "failures": Keys._failures,
    "deferred": Keys._deferred,
    "suspects": Keys._suspects,
    "stalled_ns": Keys._stalled,
    "stop_grace_ns": Keys._stop_grace,
    "copies": Keys._copies,
    "snapshots": Keys._copies,
    "held": Keys._shards,
    "to_come": Keys._shards,
}


def digest_of(key: Any) -> bytes:
    """Return 16 bytes that are equal for equal keys, in every process, and different for different ones."""
    return hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=16).digest()
