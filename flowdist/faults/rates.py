"""Faults at random: so many a day of each node, each replica, each zone.

    SUBJECT-KIND=RATE/UNIT[:ARG][/DURATION]        node-kill=6.5e-3/node-day/15m   zone-lost=1e-4/zone-day/1h

The times between the faults of one entity are exponential, each drawn from a stream of its own by seed, entity and
the rate's name: one more rate, fault or node leaves all others where they are, and another rate only stretches them.
They are whole milliseconds, so that each fault can be written, and played again, in the fault grammar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import log1p
from typing import NoReturn

from flowdist.errors import did_you_mean, underlined
from flowdist.faults.grammar import KINDS, MOMENTARY, ORDERS, Fault, FaultError, Rate, When, located, parse_fault
from flowdist.faults.streams import number, stream
from flowdist.graph import DAY, HOUR, MINUTE, MS, SECOND, RoleGraph, format_duration, parse_duration

PERIODS = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY, "year": 365 * DAY}
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d{1,3})?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
EXAMPLE = "write node-kill=6.5e-3/node-day, or node-kill=6.5e-3/node-day/15m for nodes that come back"


def parse_rate(text: str) -> Rate:
    """FaultError, with the place underlined, for what cannot be read."""
    name, equals, value = text.partition("=")
    if not equals:
        _refuse(text, len(text), len(text) + 1, "there is no =RATE", EXAMPLE)
    subject, kind = _subject_and_kind(text, name)
    number, slash, rest = value.partition("/")
    start = len(name) + 1
    if not _NUMBER.fullmatch(number) or not 0 < float(number) < math.inf:
        _refuse(text, start, start + max(len(number), 1), f"{number!r} is no rate", EXAMPLE)
    start += len(number) + 1
    if not slash:
        _refuse(text, len(text), len(text) + 1, "a rate of what, and per what time?", EXAMPLE)
    body, slash, duration = rest.partition("/")
    unit, colon, arg = body.partition(":")
    what, period_ns = _unit(text, unit, start)
    if what not in ("", "job", "node", "replica", "controller", subject):
        known = [w for w in ("node", "replica", "job", subject) if w]
        _refuse(text, start, start + len(what), f"a rate per {what!r} is unknown here", did_you_mean(what, known))
    probe = f"node0@0s:{kind}" + (f"={arg}" if colon else "")
    place = start + len(unit) + 1 if colon else start
    try:
        parse_fault(probe)
    except FaultError as error:
        help = f"write {name}={number}/{unit}:{error.help.rpartition('=')[2]}" if KINDS[kind] else "leave it out"
        _refuse(text, place, place + max(len(arg if colon else unit), 1), error.message.split("\n")[0], help)
    duration_ns = _duration(text, duration) if slash else None
    return Rate(subject, kind, float(number) / period_ns, what == "job", arg, duration_ns, text)


def _subject_and_kind(text: str, name: str) -> tuple[str, str]:
    """Names may have hyphens, and kinds too: the longest kind that it ends with."""
    kinds = [kind for kind in sorted(KINDS, key=len, reverse=True) if name.endswith(f"-{kind}")]
    if not kinds:
        start = name.rfind("-") + 1
        word = name[start:] if start else ""
        message = f"kind {word!r} is unknown" if start else f"{name!r} names no kind of fault"
        _refuse(text, start, max(len(name), 1), message, did_you_mean(word, KINDS) if start else EXAMPLE)
    subject = name.removesuffix(f"-{kinds[0]}")
    if not _NAME.fullmatch(subject):
        _refuse(text, 0, max(len(subject), 1), f"{subject!r} cannot be read", EXAMPLE)
    if kinds[0] in ORDERS:
        message = f"{kinds[0]} is an order, it does not befall anybody at random"
        _refuse(text, len(subject) + 1, len(name), message, f"write --fail {subject}@5m:{kinds[0]}")
    return subject, kinds[0]


def _unit(text: str, unit: str, start: int) -> tuple[str, int]:
    what, _, period = unit.rpartition("-")
    if period not in PERIODS:
        place = start + len(unit) - len(period)
        _refuse(text, place, place + max(len(period), 1), f"{period!r} is no time", did_you_mean(period, PERIODS))
    return what, PERIODS[period]


def _duration(text: str, value: str) -> int:
    try:
        return parse_duration(value)
    except ValueError:
        _refuse(text, len(text) - len(value), len(text) + (not value), f"{value!r} is no duration", "write 15m")


def entities(rate: Rate, graph: RoleGraph, nodes: Sequence[str]) -> list[str]:
    """Whom it befalls, each by itself, as targets of faults. FaultError for a subject that the job does not have."""
    subject, keys = rate.subject, dict.fromkeys(key for node in graph.cluster.nodes for key, _ in node.labels)
    roles = {role.name: role for role in graph.roles}
    if subject == "node":
        unit, found = "node", list(nodes)
    elif subject == "replica":
        unit, found = "replica", [f"{role.name}/{i}" for role in graph.roles for i in range(role.max_replicas)]
    elif subject == "controller":
        unit, found = "controller", ["controller"]
    elif subject in roles:
        unit, found = "replica", [f"{subject}/{i}" for i in range(roles[subject].max_replicas)]
    elif subject in nodes:
        unit, found = "node", [subject]
    elif subject in keys:
        labels = [label for node in graph.cluster.nodes for label in node.labels if label[0] == subject]
        unit, found = subject, ["=".join(label) for label in dict.fromkeys(labels)]
    else:
        known = ["node", "replica", "controller", *roles, *keys, *nodes]
        help = did_you_mean(subject, known)
        _refuse(rate.spec, 0, len(subject), f"there is no {subject!r}", help, rate.where)
    start = rate.spec.index("/") + 1
    what = re.match(r"([^:/]*)-[a-z]+(?=[:/]|$)", rate.spec[start:])
    if what is not None and what[1] not in ("job", unit):
        message = f"{rate.name} is a rate per {unit}, or per job"
        _refuse(rate.spec, start, start + len(what[1]), message, f"write {unit}-day or job-day", rate.where)
    if unit == "replica" and rate.kind in MOMENTARY and rate.duration_ns is not None:
        message = f"{rate.kind} of a replica has no duration"
        _refuse(rate.spec, rate.spec.rindex("/"), len(rate.spec), message, "leave it out", rate.where)
    return found


def check_rates(
    rates: Sequence[Rate], graph: RoleGraph, nodes: Sequence[str], check: Callable[[list[Fault]], None]
) -> None:
    """FaultError for a rate that the job, or who carries it out, cannot have. `check` refuses single faults so."""
    names: dict[str, None] = {}
    for rate in rates:
        if rate.name in names:
            message = f"there are two rates of {rate.name}: their draws would be the same"
            _refuse(rate.spec, 0, len(rate.name), message, "add them up", rate.where)
        names[rate.name] = None
        found = entities(rate, graph, nodes)
        if found and mean_ns(rate, len(found)) < len(found) * MS:
            start = rate.spec.index("=") + 1
            help = "what happens in less time cannot be told apart: is it a rate per day?"
            message = f"{rate.name} brings more than a fault a millisecond"
            _refuse(rate.spec, start, max(rate.spec.find("/"), start + 1), message, help, rate.where)
        for target in found[:1]:
            try:
                check([fault_of(rate, target, 0)])
            except FaultError as error:
                start = len(rate.subject) + 1
                text = error.message.split("\n")[0]
                _refuse(rate.spec, start, start + len(rate.kind), text, error.help, rate.where)


def fault_of(rate: Rate, target: str, at_ns: int) -> Fault:
    """One of its faults, as it would be written."""
    kind = f":{rate.kind}" + (f"={rate.arg}" if rate.arg else "")
    back = f"/{format_duration(rate.duration_ns)}" if rate.duration_ns is not None else ""
    spec = f"{target}@{format_duration(at_ns)}{kind if kind != ':kill' else ''}{back}"
    return Fault(target, When(at_ns=at_ns), 0, rate.kind, rate.arg, rate.duration_ns, spec, rate.where)


def mean_ns(rate: Rate, count: int) -> float:
    """Mean time between two of its faults of one of `count` entities."""
    return (count if rate.shared else 1) / rate.per_ns


def expected(rate: Rate, count: int) -> str:
    """In words, for the heading of a run."""
    mean = round(mean_ns(rate, count) / max(count, 1))
    unit = SECOND if mean > MINUTE else MS
    return f"{rate.spec}: {count} of them, together a fault in {format_duration(mean // unit * unit)}"


@dataclass(slots=True)
class Befallen:
    """One that faults of one rate befall: the n-th, at a time in ns; the mean time between two, and their stream."""

    n: int
    at: int
    mean: float
    of: bytes
    rate: Rate
    target: str


class Arrivals:
    """The faults of some rates, one after the other, for as long as somebody asks.

    Args:
        rates: Checked.
        graph: Of the job.
        nodes: All that may be there, in order.
        seed: Another one, other faults.
    """

    def __init__(self, rates: Sequence[Rate], graph: RoleGraph, nodes: Sequence[str], seed: int) -> None:
        self.entities: list[Befallen] = []
        for rate in rates:
            found = entities(rate, graph, nodes)
            mean = mean_ns(rate, len(found))
            for target in found:
                of = stream(seed, target, rate.name)
                self.entities.append(Befallen(0, int(-log1p(-number(of, 0)) * mean), mean, of, rate, target))
        # Of each entity's next one: the millisecond, then the place in the list, so that two at the same time come in
        # the order of the plan. They are plain numbers since a heap compares those fastest.
        self.bits = len(self.entities).bit_length()
        self.heap = [entity.at // MS << self.bits | i for i, entity in enumerate(self.entities)]
        self.mask = (1 << self.bits) - 1
        heapify(self.heap)

    def next_ns(self) -> int | None:
        """When the next one comes; None: never, as there are no rates."""
        return (self.heap[0] >> self.bits) * MS if self.heap else None

    def pop(self) -> Fault:
        """It, and on to the one after it."""
        at_ns, rate, target = self.take()
        return fault_of(rate, target, at_ns)

    def take(self) -> tuple[int, Rate, str]:
        """The same, not yet written: its time, its rate and its target."""
        first = self.heap[0]
        self.advance()
        entity = self.entities[first & self.mask]
        return (first >> self.bits) * MS, entity.rate, entity.target

    def advance(self) -> None:
        """On to the one after the next: for whoever reads `heap`, where a number ends with the place in `entities`."""
        heap = self.heap
        index = heap[0] & self.mask
        entity = self.entities[index]
        entity.n = n = entity.n + 1
        entity.at = at = entity.at + int(-log1p(-number(entity.of, n)) * entity.mean)
        heapreplace(heap, at // MS << self.bits | index)

    def until(self, end_ns: int) -> Iterable[Fault]:
        """Those up to that time."""
        while (at := self.next_ns()) is not None and at <= end_ns:
            yield self.pop()


def _refuse(text: str, start: int, end: int, message: str, help: str, where: str = "") -> NoReturn:
    raise located(FaultError(message + underlined(text, start, end), help=help), where)
