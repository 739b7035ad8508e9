"""Copies of the pure machines, and the keys by which two of them count as one.

A key holds what decides about the future and nothing else: times relative to now, and only as far back as anybody
looks; incidents by their place among those that can still matter; no words for people. A field that is not named here
goes in as it is, which can only tell apart what is the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, cast

import msgspec

from flowdist.control.agent import Agent
from flowdist.control.controller import Controller
from flowdist.control.deadlines import Deadlines, Due
from flowdist.control.liveness import Liveness
from flowdist.control.state import World
from flowdist.graph import RoleGraph

T = TypeVar("T")

MACHINES = (Agent, Controller, Deadlines, Liveness)
SKIPPED = {  # said to people, the same in every state of one job, or put into the key in another way
    "JobState": ("graph", "now", "ending_reason", "effects", "incidents", "open", "due"),
    "Role": ("spec", "worlds", "replicas"),
    "Incident": ("number", "root", "reason", "closed_ns", "result", "lost"),
    "Node": ("spec",),
    "Attempt": ("role", "started_ns"),
    "Agent": ("spec", "graph", "address", "_now", "_out"),
}


def copy_of(value: T) -> T:
    """A copy that shares nothing that can change. Frozen structs and tuples are shared."""
    copied: Any = value
    kind: Any = type(value)
    if kind is dict:
        copied = {name: copy_of(item) for name, item in copied.items()}
    elif kind is list:
        copied = [copy_of(item) for item in copied]
    elif kind in MACHINES:
        copied = kind.__new__(kind)
        copied.__dict__.update((name, copy_of(item)) for name, item in vars(value).items())
    elif is_dataclass(kind):
        copied = cast(Any, kind)(*map(copy_of, _all_fields(cast(Any, kind))(value)))
    result: T = copied
    return result


@cache
def _all_fields(kind: Any) -> attrgetter[Any]:
    return attrgetter(*(field.name for field in fields(kind)))


@cache
def _kept_fields(kind: Any) -> tuple[str, ...]:
    skipped = SKIPPED.get(kind.__name__, ())
    return tuple(field.name for field in fields(kind) if field.name not in skipped)


class Keys:
    """Makes the keys for one job. Times are nanoseconds of the clock of the machine that is asked about."""

    def __init__(self, graph: RoleGraph) -> None:
        options = graph.options
        policies = [role.restart for role in graph.roles if role.restart is not None]
        self._cause_window_ns = options.cause_window_ns
        self._looks_back_ns = {  # from which age on a time is just long ago
            "formed_ns": max(options.min_uptime_ns, *(role.cooldown_ns for role in graph.roles)),
            "last_counted_ns": max((policy.backoff_reset_ns for policy in policies), default=0),
            "charges": max((policy.within_ns or 0 for policy in policies), default=0),
            "started_ns": options.cause_window_ns,
            "opened_ns": options.cause_window_ns + 1,
            "acked_ns": options.lease_ns,
        }
        self._now = 0
        self._places: dict[int, int] = {}  # of incidents that still matter, by number

    def of_controller(self, controller: Controller, liveness: Liveness, now: int) -> list[Any]:
        job = controller.state
        since = now - self._cause_window_ns
        recent = [incident for incident in job.incidents if incident.is_open or incident.opened_ns >= since]
        self._now = now
        self._places = {incident.number: place for place, incident in enumerate(recent)}
        due = sorted((*self._named(due), (job.due.at(due) or 0) - now) for due in job.due)
        incidents = [(*self._fields(incident), list(incident.lost)) for incident in recent]
        silence = liveness._silent_after_ns
        heard = [(node, min(now - at, silence)) for node, at in liveness._heard_ns.items()]
        return [self._fields(job), due, incidents, heard, list(liveness._silent)]

    def of_agent(self, agent: Agent, now: int) -> list[Any]:
        self._now = now
        return [self._value(agent, name) for name in vars(agent) if name not in SKIPPED["Agent"]]

    def _named(self, due: Due) -> tuple[str, str]:
        of_incident = due.what in ("backoff", "verdict")
        return due.what, str(self._places[int(due.name)]) if of_incident else due.name

    def _fields(self, item: Any) -> list[Any]:
        kind: Any = type(item)
        return [self._value(item, name) for name in _kept_fields(kind)]

    def _value(self, item: Any, name: str) -> Any:
        """A time that is over is an age, one to come is what is left until then."""
        value = getattr(item, name)
        if value is None:
            return None
        if name == "incident" and isinstance(item, World):
            return self._places[value]
        if name == "charges":
            return sorted(min(self._now - at, self._looks_back_ns[name]) for at in value)
        if name in self._looks_back_ns:
            return min(self._now - value, self._looks_back_ns[name])
        if name.endswith("_at_ns"):
            return max(value - self._now, 0)
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        if type(value) is dict:
            return [(name, self._plain(item)) for name, item in value.items()]
        return self._fields(value) if is_dataclass(type(value)) else value


def digest_of(key: Any) -> bytes:
    """16 bytes that are equal for equal keys, in every process."""
    return hashlib.blake2b(msgspec.msgpack.encode(key), digest_size=16).digest()
