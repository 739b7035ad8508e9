"""Random faults at a rate: [CAUSE:]SUBJECT-KIND=RATE/UNIT[:ARG][/DURATION][/lemon=PART,TIMES][/weibull=SHAPE].

Each entity, such as a node or zone, draws from a stream of its own, keyed by seed, entity and rate: one more rate or
node leaves all other draws as they are. Times are whole ms, as in the fault grammar, so that faults can be repeated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from types import MappingProxyType

from flowdist.errors import did_you_mean
from flowdist.faults.grammar import (
    EXAMPLES,
    Fault,
    FaultError,
    Rate,
    When,
    parse_fault,
    refuse,
)
from flowdist.faults.kinds import KINDS, having
from flowdist.faults.repairs import gap_ns, parse_lemon, parse_repair, parse_shape, repair_ns, sooner
from flowdist.faults.streams import number, stream
from flowdist.graph import HOUR, MINUTE, MS, SECOND, RoleGraph, format_duration
from flowdist.graph.units import DAY

PERIODS = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY, "week": 7 * DAY, "year": 365 * DAY}
_NUMBER = re.compile(r"\d+(\.\d+)?([eE][+-]?\d{1,3})?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
EXAMPLE = (
    "write node-kill=6.5e-3/node-day, node-kill=6.5e-3/node-day/15m for nodes that come back, or "
    "trainer-kill=0.1/replica-day for the replicas of a role"
)


def parse_rate(text: str) -> Rate:
    """Return the rate that a text describes; FaultError, with the wrong part underlined, if it cannot be read."""
    name, equals, value = text.partition("=")
    if not equals:
        refuse(text, len(text), len(text) + 1, "there is no =RATE", EXAMPLE)
    cause, subject, kind = _cause_subject_and_kind(text, name)
    number, slash, rest = value.partition("/")
    start = len(name) + 1
    if not _NUMBER.fullmatch(number) or not 0 < float(number) < math.inf:
        refuse(text, start, start + max(len(number), 1), f"{number!r} is no rate", EXAMPLE)
    start += len(number) + 1
    if not slash:
        help = _help_for_unit(text, subject, kind)
        refuse(text, len(text), len(text) + 1, "a rate of what, and per what time?", help)
    body, slash, after = rest.partition("/")
    duration, extras = _extras(after)
    unit, colon, arg = body.partition(":")
    what, period_ns = _unit(text, unit, start)
    if what not in ("", "job", "node", "replica", "controller", subject):
        known = [w for w in ("node", "replica", "job", subject) if w]
        refuse(text, start, start + len(what), f"a rate per {what!r} is unknown here", did_you_mean(what, known))
    probe = f"node0@0s:{kind}" + (f"={arg}" if colon else "")
    place = start + len(unit) + 1 if colon else start
    try:
        parse_fault(probe)
    except FaultError as error:
        example = error.help.rpartition("=")[2]
        help = f"write {name}={number}/{unit}:{example}" if KINDS[kind].argument else "leave it out"
        refuse(text, place, place + max(len(arg if colon else unit), 1), error.message.split("\n")[0], help)
    at, is_back = len(text) - len(after), bool(slash) and (bool(duration) or not extras)
    repair, duration_ns = parse_repair(text, at, duration) if is_back else (None, None)
    per_ns = float(number) / period_ns
    rate = Rate(subject, kind, per_ns, what == "job", arg, duration_ns, text, cause=cause, repair=repair)
    for extra in extras:
        place = text.rindex(f"/{extra}") + 1
        if extra.startswith("lemon"):
            rate = rate._replace(lemon=parse_lemon(text, place, extra, kind, returns=is_back))
        else:
            rate = rate._replace(shape=parse_shape(text, place, extra, shared=rate.shared))
    return rate


def _extras(after: str) -> tuple[str, list[str]]:
    """Return the duration of a rate, which may be empty, and what stands after it: `lemon=...`, `weibull=...`."""
    words = after.split("/")
    first = next((i for i, word in enumerate(words) if word.startswith(("lemon", "weibull"))), len(words))
    return "/".join(words[:first]), words[first:]


def _help_for_unit(text: str, subject: str, kind: str) -> str:
    """Return what to write for a rate without a unit, such as `trainer-kill=2`, whatever its subject is in the job."""
    wants = KINDS[kind].argument
    arg = f":{EXAMPLES[wants]}" if wants else ""
    # the name of a subject alone does not say whether it is a role, a node or the key of a label
    what = subject if subject in ("node", "replica", "controller") else f"replica or node of {subject}"
    return f"write {text}/day{arg} for each {what}, or {text}/job-day{arg} for all together"


def _cause_subject_and_kind(text: str, name: str) -> tuple[str, str, str]:
    """Return cause (or ""), subject and kind of `nic:node-kill`, split before the longest kind: names have hyphens."""
    cause, colon, rest = name.partition(":")
    if colon and not _NAME.fullmatch(cause):
        refuse(text, 0, max(len(cause), 1), f"{cause!r} cannot be the name of a cause", "write nic:node-kill=...")
    if colon:
        name = rest
    kinds = [kind for kind in sorted(KINDS, key=len, reverse=True) if name.endswith(f"-{kind}")]
    if not kinds:
        start = name.rfind("-") + 1
        word = name[start:] if start else ""
        message = f"kind {word!r} is unknown" if start else f"{name!r} names no kind of fault"
        refuse(text, start, max(len(name), 1), message, did_you_mean(word, KINDS) if start else EXAMPLE)
    subject = name.removesuffix(f"-{kinds[0]}")
    if not _NAME.fullmatch(subject):
        refuse(text, 0, max(len(subject), 1), f"{subject!r} cannot be read", EXAMPLE)
    if kinds[0] in having("order"):
        message = f"{kinds[0]} is an order of the operator, and does not happen at random"
        refuse(text, len(subject) + 1, len(name), message, f"write --fail {subject}@5m:{kinds[0]}")
    return cause if colon else "", subject, kinds[0]


def _unit(text: str, unit: str, start: int) -> tuple[str, int]:
    """Return the entity and the period in ns of a unit such as `node-day`; raise FaultError for an unknown period."""
    what, _, period = unit.rpartition("-")
    if period not in PERIODS:
        place = start + len(unit) - len(period)
        refuse(text, place, place + max(len(period), 1), f"{period!r} is no time", did_you_mean(period, PERIODS))
    return what, PERIODS[period]


def entities(rate: Rate, graph: RoleGraph, nodes: Sequence[str]) -> list[str]:
    """Return the targets that the rate hits, each with faults of its own: `node1`, `trainer/0`, `zone=a`, `controller`.

    FaultError if the job does not have the subject, the unit is that of another one, or there is no duration.
    """
    unit, found = _subjects(rate, graph, nodes)
    _check_unit(rate, unit)
    if unit == "replica" and rate.kind in having("momentary") and rate.duration_ns is not None:
        message, place = f"{rate.kind} of a replica has no duration", rate.spec.index("/", rate.spec.index("/") + 1)
        end = place + 1 + len(rate.spec[place + 1 :].partition("/")[0])
        refuse(rate.spec, place, end, message, "leave it out", rate.where)
    return found


def _subjects(rate: Rate, graph: RoleGraph, nodes: Sequence[str]) -> tuple[str, list[str]]:
    """Return the unit of the rate's subject (`node`, `replica`, `controller` or the key of a label) and the targets."""
    subject = rate.subject
    replicas = {role.name: [f"{role.name}/{i}" for i in range(role.max_replicas)] for role in graph.roles}
    labels = dict.fromkeys(label for node in graph.cluster.nodes for label in node.labels)
    if subject == "node":
        return "node", list(nodes)
    if subject == "replica":
        return "replica", [name for names in replicas.values() for name in names]
    if subject == "controller":
        return "controller", ["controller"]
    if subject in replicas:
        return "replica", replicas[subject]
    if subject in nodes:
        return "node", [subject]
    found = ["=".join(label) for label in labels if label[0] == subject]
    if not found:
        known = ["node", "replica", "controller", *replicas, *dict.fromkeys(key for key, _ in labels), *nodes]
        start = rate.spec.index(subject)
        help = did_you_mean(subject, known)
        refuse(rate.spec, start, start + len(subject), f"there is no {subject!r}", help, rate.where)
    return subject, found


def _check_unit(rate: Rate, unit: str) -> None:
    """Raise FaultError for a unit of another subject, as in `node-kill=1/replica-day`; `job` is always right."""
    start = rate.spec.index("/") + 1
    written = re.match(r"([^:/]*)-[a-z]+(?=[:/]|$)", rate.spec[start:])
    if written is not None and written[1] not in ("job", unit):
        message = f"{rate.name} is a rate per {unit}, or per job"
        refuse(rate.spec, start, start + len(written[1]), message, f"write {unit}-day or job-day", rate.where)


def check_rates(
    rates: Sequence[Rate], graph: RoleGraph, nodes: Sequence[str], check: Callable[[list[Fault]], None]
) -> None:
    """Check the rates of a plan against the job, in which there may be these nodes.

    FaultError for two rates of one name, an unknown subject, faults that `check` refuses, or a rate above 1/ms.
    """
    names: dict[str, None] = {}
    for rate in rates:
        if rate.name in names:
            message = f"there are two rates of {rate.name}: their draws would be the same"
            help = f"add them up, or name their causes: nic:{rate.subject}-{rate.kind}=..."
            refuse(rate.spec, 0, len(rate.name), message, help, rate.where)
        names[rate.name] = None
        found = entities(rate, graph, nodes)
        if found and mean_ns(rate, len(found)) < len(found) * MS:
            start = rate.spec.index("=") + 1
            help = "what happens in less time cannot be told apart: is it a rate per day?"
            message = f"{rate.name} brings more than a fault a millisecond"
            refuse(rate.spec, start, max(rate.spec.find("/"), start + 1), message, help, rate.where)
        for target in found[:1]:
            try:
                check([fault_of(rate, target, 0)])
            except FaultError as error:
                start = len(rate.name) - len(rate.kind)
                text = error.message.split("\n")[0]
                refuse(rate.spec, start, start + len(rate.kind), text, error.help, rate.where)


def fault_of(rate: Rate, target: str, at_ns: int) -> Fault:
    """Return a fault of the rate with this target and time in ns, and its text in the fault grammar."""
    kind = f":{rate.kind}" + (f"={rate.arg}" if rate.arg else "")
    back = f"/{format_duration(rate.duration_ns)}" if rate.duration_ns is not None else ""
    spec = f"{target}@{format_duration(at_ns)}{kind if kind != ':kill' else ''}{back}"
    return Fault(target, When(at_ns=at_ns), 0, rate.kind, rate.arg, rate.duration_ns, spec, rate.where, rate.name)


def mean_ns(rate: Rate, count: int) -> float:
    """Return the mean time in ns between two faults of one entity, if the rate has `count` entities."""
    return (count if rate.shared else 1) / rate.per_ns


def expected(rate: Rate, count: int) -> str:
    """Return a line for the heading of a run: the rate, its number of entities, the mean time between two faults."""
    mean = round(mean_ns(rate, count) / max(count, 1))
    unit = SECOND if mean > MINUTE else MS
    return f"{rate.spec}: {count} of them, together a fault in {format_duration(mean // unit * unit)}"


@dataclass(slots=True)
class Entity:
    """Entity that faults of one rate hit."""

    n: int  # number of its next fault, from 0
    at: int  # time of that fault, in ns
    mean: float  # time between two of its faults, in ns
    of: bytes  # key of the stream from which the times are drawn
    rate: Rate
    target: str  # of the faults, in the fault grammar


class Arrivals:
    """Endless sequence of the faults of several rates, already checked, in the order of their times.

    `nodes` are the names of all that may be there, in order; `starts` (ns) those of later ones, which age from then on.
    """

    def __init__(
        self,
        rates: Sequence[Rate],
        graph: RoleGraph,
        nodes: Sequence[str],
        seed: int,
        starts: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.entities: list[Entity] = []
        for rate in rates:
            found = entities(rate, graph, nodes)
            mean = mean_ns(rate, len(found))
            for target in found:
                of = stream(seed, target, rate.name)
                begun = starts.get(target, 0) if rate.shape is not None else 0
                at = begun + gap_ns(rate, mean, number(of, 0))
                self.entities.append(Entity(0, at, mean, of, rate, target))
        # One number for the next fault of each entity: its millisecond, and in the low bits the place of the entity, so
        # that two faults of the same time come in the order of the plan. A heap compares plain numbers fastest.
        self.bits = len(self.entities).bit_length()
        self.heap = [entity.at // MS << self.bits | i for i, entity in enumerate(self.entities)]
        self.mask = (1 << self.bits) - 1
        heapify(self.heap)

    def next_ns(self) -> int | None:
        """Return the time of the next fault, in ns; None if no rate has an entity. The fault stays the next one."""
        return (self.heap[0] >> self.bits) * MS if self.heap else None

    def pop(self) -> Fault:
        """Return the next fault and remove it from the sequence. There must be one."""
        at_ns, rate, target = self.take()
        return fault_of(rate, target, at_ns)

    def take(self) -> tuple[int, Rate, str]:
        """Remove the next fault, and return its time in ns, rate (with its duration) and target: `pop` without text."""
        first = self.heap[0]
        entity = self.entities[first & self.mask]
        rate = entity.rate
        if rate.repair is not None:
            rate = rate._replace(duration_ns=repair_ns(rate, entity.of, entity.n))
        self._draw_another(first & self.mask)
        return (first >> self.bits) * MS, rate, entity.target

    def _draw_another(self, index: int) -> None:
        """Draw the next fault of the entity whose fault is first in the heap, in place of that."""
        entity = self.entities[index]
        mean, rate = entity.mean, entity.rate
        times = sooner(rate, entity.of, entity.n) if rate.lemon is not None else 1
        if times > 1 or rate.shape is not None:
            mean /= times
            entity.at += repair_ns(rate, entity.of, entity.n) or 0
        entity.n = n = entity.n + 1
        entity.at = at = entity.at + gap_ns(rate, mean, number(entity.of, n))
        heapreplace(self.heap, at // MS << self.bits | index)

    def until(self, end_ns: int) -> Iterable[Fault]:
        """Yield the faults up to a time in ns, that one included, and remove each from the sequence."""
        while (at := self.next_ns()) is not None and at <= end_ns:
            yield self.pop()
