"""Rates of faults, measured in the records of runs: how many there were in how much time of nodes or replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowdist.faults.grammar import Fault
from flowdist.faults.kinds import having
from flowdist.graph import MINUTE, RoleGraph, format_duration
from flowdist.graph.units import DAY
from flowdist.record.journal import Header
from flowdist.record.reader import WholeRecord
from flowdist.report.goodput import poisson_95
from flowdist.sim.experiment.record import reconstruct

_Kind = tuple[str, str]  # "node" or a role, and the kind of fault


class MeasuredRate(NamedTuple):
    """Rate of one kind of fault as the text of `--rate`; limits (95 %) are per day of one node or replica."""

    text: str
    faults: int
    days: float
    low: float
    high: float


def measured_rates(records: Sequence[WholeRecord], graph: RoleGraph) -> list[MeasuredRate]:
    """Return the rates of all kinds of faults in the records that a topology can have. Each run counts with its length.

    Faults that flowdist injected count as well: a record of a test has the rates of the test. Faults of roles that the
    topology does not have, of the controller, of links and of GPUs do not count.
    """
    found: dict[_Kind, list[Fault]] = {}
    days: dict[str, float] = {}
    roles = {role.name for role in graph.roles}
    for record in records:
        for subject, more in _exposure(record).items():
            days[subject] = days.get(subject, 0.0) + more
        for fault in reconstruct(record.header, record.lines).plan.faults:
            if (kind := _kind_of(fault, roles)) is not None:
                found.setdefault(kind, []).append(fault)
    return [_rate(kind, found[kind], days[kind[0]]) for kind in sorted(found) if days.get(kind[0])]


def _exposure(record: WholeRecord) -> dict[str, float]:
    """Return for how many days nodes, and replicas of each role, could fail: all of them for the length of the run."""
    graph = record.header.graph
    long = max((line.t_ns for line in record.lines if not isinstance(line, Header)), default=0) / DAY
    nodes = len(record.header.known_nodes) or len(graph.cluster.nodes) or 1
    return {"node": long * nodes, **{role.name: long * role.max_replicas for role in graph.roles}}


def _kind_of(fault: Fault, roles: set[str]) -> _Kind | None:
    """Return what kind of rate the fault counts for; None if for none."""
    if fault.replica is not None:
        role = fault.replica[0]
        return (role, fault.kind) if fault.kind in (*having("ends"), "hang") and role in roles else None
    is_node = fault.target not in ("controller", "all", *roles) and fault.label is None
    return ("node", fault.kind) if is_node and fault.kind in having("takes-node") else None


def _rate(kind: _Kind, faults: Sequence[Fault], days: float) -> MeasuredRate:
    """Return the rate of faults of one kind; nodes are away for the mean of the times after which they came back."""
    subject, name = kind
    unit = "node" if subject == "node" else "replica"
    arg = f":{faults[0].arg}" if faults[0].arg else ""
    back = [fault.duration_ns for fault in faults if fault.duration_ns is not None] if unit == "node" else []
    away = f"/{format_duration(_whole(sum(back) // len(back)))}" if back else ""
    rate = len(faults) / days  # three digits, as the grammar of rates reads them: 0.0125, 2.5, 1440
    text = f"{subject}-{name}={rate:{'.3g' if rate < 1000 else '.0f'}}/{unit}-day{arg}{away}"
    low, high = (count / days for count in poisson_95(len(faults)))
    return MeasuredRate(text, len(faults), days, low, high)


def _whole(ns: int) -> int:
    """Return a duration of a second or more, in whole seconds, or whole minutes from ten minutes on."""
    unit = MINUTE if ns >= 10 * MINUTE else MINUTE // 60
    return max(unit, round(ns / unit) * unit)
