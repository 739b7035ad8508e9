"""Repairs of a rate: their distributions, and nodes that come back bad."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from flowdist.faults.grammar import FaultError, Lemon, Plan, Repair
from flowdist.faults.rates import Arrivals, check_rates, parse_rate
from flowdist.graph import HOUR, MS, SECOND, Cluster, NodeSpec, RoleGraph, RoleSpec
from flowdist.graph.units import DAY

GRAPH = RoleGraph("a", (RoleSpec("trainer", ("true",)),), cluster=Cluster((NodeSpec("node0"), NodeSpec("node1"))))
NODES = ["node0", "node1"]


def drawn(text: str, until: int, seed: int = 1) -> list[tuple[int, int | None]]:
    arrivals = Arrivals([parse_rate(text)], GRAPH, ["node0"], seed)
    found = [(fault.when.at_ns or 0, fault.duration_ns) for fault in arrivals.until(until)]
    assert len(found) > 30
    return found


def test_a_rate_has_a_cause_a_distribution_of_repairs_and_lemons() -> None:
    rate = parse_rate("ecc:node-kill=1e-3/node-day/2h..6h/lemon=0.1,50")
    assert (rate.cause, rate.subject, rate.kind, rate.name) == ("ecc", "node", "kill", "ecc:node-kill")
    assert (rate.repair, rate.lemon, rate.duration_ns) == (Repair(False, 2 * HOUR, 6 * HOUR), Lemon(0.1, 50), 4 * HOUR)
    assert parse_rate("node-kill=1/day/exp(4h)").repair == Repair(True, SECOND, 4 * HOUR)
    assert parse_rate("node-kill=1/day/4h").repair is None


@pytest.mark.parametrize(
    ("text", "marked", "says"),
    [
        ("a b:node-kill=1/day", "a b", "'a b' cannot be the name of a cause"),
        (":node-kill=1/day", ":", "'' cannot be the name of a cause"),
        ("nic:nod=1/day", "", "'nod' names no kind of fault"),
        ("node-kill=1/day/6h..2h", "6h", "6h is not less than 2h"),
        ("node-kill=1/day/6..8h", "6", "'6' is no duration"),
        ("node-kill=1/day/6h..8", "8", "'8' is no duration"),
        ("node-kill=1/day/exp(4)", "4", "'4' is no duration"),
        ("node-kill=1/day/exp(500ms)", "exp(500ms)", "no repair takes less than a second"),
        ("node-kill=1/day/4h/lemon=1", "lemon=1", "'lemon=1' cannot be read"),
        ("node-kill=1/day/4h/lemon=2,3", "lemon=2,3", "a part is from 0 to 1"),
        ("node-kill=1/day/4h/lemon=0.5,inf", "lemon=0.5,inf", "a part is from 0 to 1"),
        ("node-kill=1/day/lemon=0.1,5", "lemon=0.1,5", "no node comes back"),
        ("node-pause=1/day/4h/lemon=0.1,5", "lemon=0.1,5", "no node comes back"),
    ],
)
def test_what_cannot_be_read_is_underlined(text: str, marked: str, says: str) -> None:
    with pytest.raises(FaultError) as error:
        parse_rate(text)
    message, spec, line = error.value.message.split("\n")
    assert message.startswith(says)
    assert not marked or spec.strip()[line.index("^") - 2 : line.rindex("^") - 1] == marked


def test_repairs_are_drawn_from_their_distribution_and_written_in_the_grammar() -> None:
    even = [ns for _, ns in drawn("node-kill=24/node-day/2m..6m", 90 * DAY) if ns is not None]
    assert 2 * 60 * SECOND <= min(even) < max(even) < 6 * 60 * SECOND
    assert statistics.mean(even) == pytest.approx(240 * SECOND, rel=0.03)
    assert all(ns % MS == 0 for ns in even)
    skewed = [ns for _, ns in drawn("node-kill=24/node-day/exp(4m)", 90 * DAY) if ns is not None]
    assert statistics.mean(skewed) == pytest.approx(240 * SECOND, rel=0.06)
    assert statistics.stdev(skewed) == pytest.approx(240 * SECOND, rel=0.1)
    assert min(skewed) >= SECOND


def test_a_distribution_of_repairs_changes_no_time_of_a_fault() -> None:
    fixed = drawn("node-kill=2/node-day/4h", 90 * DAY)
    assert [at for at, _ in drawn("node-kill=2/node-day/exp(4h)", 90 * DAY)] == [at for at, _ in fixed]
    assert {ns for _, ns in fixed} == {4 * HOUR}


def test_a_lemon_fails_soon_after_its_return() -> None:
    faults = drawn("node-kill=0.2/node-day/1h/lemon=1,100", 90 * DAY)
    gaps = [later - at for (at, _), (later, _) in pairwise(faults)]
    assert min(gaps) >= HOUR
    assert statistics.mean(gaps) == pytest.approx(HOUR + 5 * DAY / 100, rel=0.2)
    some = drawn("node-kill=0.2/node-day/1h/lemon=0.5,1e6", 400 * DAY)
    soon = [later - at < 2 * HOUR for (at, _), (later, _) in pairwise(some)]
    assert 0.35 < sum(soon) / len(soon) < 0.65


def test_two_rates_of_a_kind_need_causes_and_draw_for_themselves() -> None:
    twice = [parse_rate("node-kill=1/day/1h"), parse_rate("node-kill=2/day/1h")]
    with pytest.raises(FaultError, match=r"nic:node-kill=\.\.\."):
        check_rates(twice, GRAPH, NODES, lambda _: None)
    named = (parse_rate("nic:node-kill=1/node-day/1h"), parse_rate("ecc:node-kill=1/node-day/1h"))
    check_rates(named, GRAPH, NODES, lambda _: None)
    both = list(Arrivals(Plan(rates=named).rates, GRAPH, NODES, 3).until(20 * DAY))
    assert len({fault.when.at_ns for fault in both}) == len(both) > 40
    with pytest.raises(FaultError) as error:
        check_rates([parse_rate("nic:nods-kill=1/day")], GRAPH, NODES, lambda _: None)
    assert error.value.message.splitlines()[1:] == ["  nic:nods-kill=1/day", "      ^^^^"]
