"""Copies of the pure machines, and the keys by which two of them count as one.

A key holds what decides about the future and nothing else: times relative to now, and only as far back as anybody
looks; incidents by their place among those that can still matter; no words for people. A field that is not named here
goes in as it is, which can only tell apart what is the same.
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
from flowdist.graph import RestartPolicy, RoleGraph

T = TypeVar("T")

SKIPPED = {
    # said to people, the same in every state of one job, put into the key in another way, or counted from what is in it
    # and counted again by the invariants
    "JobState": (
        *("graph", "now", "ending_reason", "effects", "incidents", "open", "due", "node_order", "free", "live_at"),
        *("touched", "touched_roles", "unsatisfied", "placement_changed", "candidate_indexes", "leaving"),
    ),
    "Role": (
        *("spec", "order", "need", "depth", "worlds", "replicas", "dependents", "upstream"),
        *("pending", "seated", "unseated", "seats", "portless", "candidates", "waiting", "leaving", "vacant"),
    ),
    "World": ("roles", "pool", "order", "counts", "stalls", "spoken"),
    "Replica": ("procs", "stays"),
    "Incident": ("number", "root", "reason", "closed_ns", "result", "lost", "stayed"),
    "Node": ("spec", "free", "order", "lost_because"),
    "Notice": ("because",),
    "Attempt": ("role", "started_ns"),
    "Agent": ("spec", "graph", "address", "_now", "_out", "_due_at_ns"),
    "Lease": ("_options", "_lasts_ns"),
}


def copy_of(value: T) -> T:
    """A copy that shares nothing that can change, and in which what was one is one. Structs and tuples are frozen."""
    copied: T = _copier(type(value))(value, {})
    return copied


Memo = dict[int, Any]  # what was copied already, by its identity
Copier = Callable[[Any, Memo], Any]

_COPIERS: dict[Any, Copier] = {}
_ATOMS = (str, int, float, bool, bytes, type(None))


def _copier(kind: Any) -> Copier:
    found = _COPIERS.get(kind)
    if found is None:
        found = _COPIERS[kind] = _new_copier(kind)
    return found


def _new_copier(kind: Any) -> Copier:
    """What makes copies of that type. Whatever else of flowdist is no struct and no tuple is copied field by field."""
    if kind is dict:
        return _copy_dict
    if kind is list:
        return lambda value, memo: [_copier(type(item))(item, memo) for item in value]
    if issubclass(kind, dict | list | set):
        return lambda value, memo: value.copy()
    if not kind.__module__.startswith("flowdist.") or issubclass(kind, tuple | msgspec.Struct):
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
    first = next(iter(value.values()), None)
    if isinstance(first, _ATOMS):  # names, counts: of one type in each dict
        return value.copy()
    return {name: _copier(type(item))(item, memo) for name, item in value.items()}


@cache
def _kept_fields(kind: Any) -> tuple[str, ...]:
    skipped = SKIPPED.get(kind.__name__, ())
    return tuple(field.name for field in fields(kind) if field.name not in skipped)


def _policies(policy: RestartPolicy | None) -> list[RestartPolicy]:
    """The policy, and those that it escalates to."""
    return [policy, *_policies(policy.wider)] if policy is not None else []


class Keys:
    """Makes the keys for one job. Times are nanoseconds of the clock of the machine that is asked about."""

    def __init__(self, graph: RoleGraph) -> None:
        options = graph.options
        policies = [policy for role in graph.roles for policy in _policies(role.restart)]
        self._cause_window_ns = options.cause_window_ns
        self._charges_ns = max((policy.within_ns or 0 for policy in policies), default=0)
        self._failures_ns = options.bad_node_window_ns
        self._looks_back_ns = {  # from which age on a time is just long ago
            "formed_ns": max(options.min_uptime_ns, *(role.cooldown_ns for role in graph.roles)),
            "last_counted_ns": max((policy.backoff_reset_ns for policy in policies), default=0),
            "started_ns": options.cause_window_ns,
            "opened_ns": options.cause_window_ns + 1,
            "acked_ns": options.lease_ns,
            "refused_ns": options.lease_ns,
            "outage_since_ns": options.controller_outage_ns,
        }
        self._now = 0
        self._places: dict[int, int] = {}  # of incidents that still matter, by number

    def of_controller(self, controller: Controller, sessions: Sessions, now: int) -> list[Any]:
        job, liveness = controller.state, sessions._detector
        since = now - self._cause_window_ns
        recent = [incident for incident in job.incidents if incident.is_open or incident.opened_ns >= since]
        self._now = now
        self._places = {incident.number: place for place, incident in enumerate(recent)}
        due = sorted((*self._named(due), (job.due.at(due) or 0) - now) for due in job.due)
        incidents = [(*self._fields(incident), list(incident.lost)) for incident in recent]
        until = sorted((node, max(until - now, 0)) for node, until in liveness._until_ns.items())
        deaf = [sorted(liveness._suspected), sorted(liveness._silent)]
        heard = [until, *deaf, sessions.epoch, sorted(sessions._incarnations.items())]
        return [self._fields(job), self._unsettled(job), due, incidents, heard]

    def _unsettled(self, job: JobState) -> list[Any]:
        """What settling has yet to visit; once the job ends nobody looks at it."""
        if job.ending is not None:
            return []
        return [sorted(job.touched), sorted(job.touched_roles), sorted(job.unsatisfied), job.placement_changed]

    def of_agent(self, agent: Agent, now: int) -> list[Any]:
        self._now = now
        return self._attributes(agent)

    def _named(self, due: Due) -> tuple[str, str]:
        of_incident = due.what in INCIDENT_DUES
        return due.what, str(self._places[int(due.name)]) if of_incident else due.name

    def _fields(self, item: Any) -> list[Any]:
        kind: Any = type(item)
        return [self._value(item, name) for name in _kept_fields(kind)]

    def _attributes(self, item: Any) -> list[Any]:
        skipped = SKIPPED.get(type(item).__name__, ())
        return [self._value(item, name) for name in vars(item) if name not in skipped]

    def _value(self, item: Any, name: str) -> Any:
        """A time that is over is an age, one to come is what is left until then."""
        value = getattr(item, name)
        if value is None or value is True or value is False:
            return value
        if name == "incident" and isinstance(item, World):
            return self._places[value]
        if name == "charges":
            return sorted(self._charge(charge) for charge in value)
        if name == "spent":
            return sorted((level, self._long_ago(opened)) for level, times in value.items() for opened in times)
        if name in ("rooted", "lost_in"):
            return [self._places[number] for number in value if number in self._places]
        if name == "failures":
            return [self._failure(failure) for failure in value if self._now - failure.at_ns < self._failures_ns]
        if name == "deferred":
            return [self._deferred(deferred) for deferred in value]
        if name == "suspects":
            return [(node, self._now - since) for node, since in value.items()]
        if name in self._looks_back_ns:
            return min(self._now - value, self._looks_back_ns[name])
        if name == "stalled_ns":
            return self._now - value if item.stalled else None
        if name == "stop_grace_ns" and isinstance(item, Replica):
            return value if item.phase == "stopping" else None
        if name.endswith("_at_ns"):
            return max(value - self._now, 0)
        return self._plain(value)

    def _charge(self, charge: Charge) -> tuple[int, int]:
        return charge.level, self._long_ago(charge.opened_ns)

    def _long_ago(self, opened_ns: int) -> int:
        """How long ago a budget was charged, as far back as a window of a budget reaches."""
        return min(self._now - opened_ns, self._charges_ns)

    def _failure(self, failure: PastFailure) -> list[Any]:
        return [self._now - failure.at_ns, failure.kind, failure.replica, failure.node]

    def _deferred(self, deferred: Deferred) -> list[Any]:
        failure, *flags, own = deferred
        facts = [failure.replica, failure.kind, failure.exit_code, failure.signal, failure.node, failure.was_told]
        return [self._now - failure.at_ns, *facts, *flags, self._places.get(own) if own is not None else None]

    def _plain(self, value: Any) -> Any:
        kind: Any = type(value)
        if kind is dict:
            return [(name, self._plain(item)) for name, item in value.items()]
        if is_dataclass(kind):
            return self._fields(value)
        if kind.__module__.startswith("flowdist.") and not isinstance(value, tuple | msgspec.Struct):
            return self._attributes(value)
        return value


def digest_of(key: Any) -> bytes:
    """16 bytes that are equal for equal keys, in every process."""
    return hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=16).digest()
