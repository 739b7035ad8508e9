"""Outcomes of records, and how two of them are put side by side."""

from __future__ import annotations

from typing import Any

from flowdist.graph import SECOND
from flowdist.sim.experiment.compare import compare
from flowdist.sim.experiment.outcome import IncidentOutcome, Outcome, of_record
from tests.report.records import crash_loop


def incident(number: int, root: str, kind: str = "exit", **fields: Any) -> IncidentOutcome:
    values = {"opened_ns": number, "restarted": ("trainer/0",), "stayed": (), "charged_to": "trainer"}
    values |= {"result": "recovered", "next_step_ns": 5}
    return IncidentOutcome(number, kind, root, **values | fields)


def outcome(*incidents: IncidentOutcome, end: str = "succeeded", members: tuple[str, ...] = ("trainer/0",)) -> Outcome:
    return Outcome(end, 60, "", incidents, {"trainer": (members,)})


def numbers(a: Outcome, b: Outcome) -> list[tuple[int | None, int | None]]:
    return [(one and one.number, other and other.number) for one, other in compare(a, b).pairs]


def test_an_outcome_has_the_incidents_the_worlds_and_the_lost_work_of_a_record() -> None:
    found = of_record(*crash_loop(2, 3))
    assert [each.root for each in found.incidents] == ["trainer/0", "trainer/1", "trainer/0"]
    assert all(each.charged_to == "trainer" and each.re_formed_ns is not None for each in found.incidents)
    assert [each.opened_ns for each in found.incidents] == [70 * SECOND, 140 * SECOND, 210 * SECOND]
    assert found.worlds == {"trainer": 4 * (("trainer/0", "trainer/1"),)}
    assert found.lost_ns == {"trainer": 3 * 10 * SECOND}


def test_the_same_outcomes_differ_in_nothing() -> None:
    found = of_record(*crash_loop(2, 3))
    assert compare(found, found).differences == []
    assert numbers(found, found) == [(1, 1), (2, 2), (3, 3)]


def test_an_incident_that_one_record_has_alone_is_named_with_its_side() -> None:
    both, alone = incident(1, "trainer/0"), incident(2, "node1", "node_lost")
    assert numbers(outcome(both, alone), outcome(both)) == [(1, 1), (2, None)]
    assert compare(outcome(both, alone), outcome(both)).differences == [
        "incident 2 (node_lost of node1) is in the first record alone",
    ]
    assert compare(outcome(both), outcome(both, alone)).differences == [
        "incident 2 (node_lost of node1) is in the second record alone",
    ]


def test_incidents_of_other_causes_between_two_pairs_are_paired_one_by_one() -> None:
    """The same event may be judged differently: the exit of a worker before its node is known to be lost."""
    first, last = incident(1, "trainer/0"), incident(3, "trainer/1")
    seen_as_exit = incident(2, "trainer/2", result="", charged_to=None)
    seen_as_loss = incident(7, "node2", "node_lost", restarted=("trainer/1", "trainer/2"), result="", charged_to=None)
    a, b = outcome(first, seen_as_exit, last), outcome(first, seen_as_loss, last)
    assert numbers(a, b) == [(1, 1), (2, 7), (3, 3)]
    assert compare(a, b).differences == [
        "incidents 2 and 7: cause: exit / node_lost",
        "incidents 2 and 7: root: trainer/2 / node2",
        "incidents 2 and 7: restarted: trainer/0 / trainer/1, trainer/2",
    ]


def test_what_was_decided_otherwise_is_said_of_the_pair() -> None:
    free = incident(1, "trainer/0", charged_to=None, restarted=())
    assert compare(outcome(incident(1, "trainer/0")), outcome(free)).differences == [
        "incident 1: restarted: trainer/0 / nothing",
        "incident 1: charged to: trainer / nothing",
    ]


def test_outcomes_and_the_members_of_worlds_are_compared() -> None:
    two = ("trainer/0", "trainer/1")
    assert compare(outcome(), outcome(end="failed", members=two)).differences == [
        "outcome: succeeded / failed",
        "trainer, generation 1: trainer/0 / trainer/0, trainer/1",
    ]
    longer = outcome()._replace(worlds={"trainer": (("trainer/0",), two)})
    assert compare(longer, outcome()).differences == ["trainer: 2 generations / 1"]
    assert compare(outcome(), outcome()._replace(worlds={})).differences == ["trainer: 1 generations / 0"]
