"""The judge of a record: a correct record passes, and each change to it that breaks a rule is reported."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Effect, OpenStore, StartReplica
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import SECOND, RoleGraph, Rule
from flowdist.record.journal import Line, Record
from flowdist.sim.simulation import Simulation
from tests.control.harness import Gate, Talk, graph, joined, r, restart, role
from tests.proofs.judge import phrases
from tests.proofs.judge.restart_rules import complaints


def two_roles() -> RoleGraph:
    ps = role("ps", kind="service", min_replicas=2, max_replicas=2, restart=restart("replica"))
    gates = (Gate("ps", "started", "restart"),)
    return graph(ps, role("trainer", min_replicas=2, max_replicas=2, gates=gates, restart=restart()), nodes=2)


def record(*faults: str) -> list[Line]:
    return Simulation(two_roles(), Plan(tuple(parse_fault(text) for text in faults))).run().lines


def with_starts(lines: list[Line], change: Callable[[StartReplica], Effect]) -> list[Line]:
    """Return the record with every StartReplica changed."""
    changed: list[Line] = []
    for line in lines:
        if isinstance(line, Record):
            effects = tuple(change(e) if isinstance(e, StartReplica) else e for e in line.effects)
            line = msgspec.structs.replace(line, effects=effects)
        changed.append(line)
    return changed


def without(lines: list[Line], kind: type) -> list[Line]:
    return [line for line in lines if not (isinstance(line, Record) and isinstance(line.event, kind))]


def rules(lines: list[Line]) -> set[str]:
    return {complaint.rule for complaint in complaints(lines)}


@pytest.mark.parametrize("faults", [(), ("ps/0@20s",), ("trainer/1@20s:exit=3", "node1@40s/10s"), ("node0@20s:lost",)])
def test_what_happens_as_it_should_is_no_complaint(faults: tuple[str, ...]):
    assert complaints(record(*faults)) == []


def test_a_start_without_the_end_of_what_ran_is_two_at_once():
    assert "R19" in rules(without(record("ps/0@20s"), ev.ReplicaStopped))


@pytest.mark.parametrize(("reason", "is_found"), [("ps/1 failed", True), ("ps/10 failed", False), ("x-ps/1", False)])
def test_the_end_of_a_service_is_followed_by_a_message_about_this_replica(reason: str, is_found: bool):
    changed: list[Line] = []
    for line in record("ps/1@20s:exit=3"):
        if isinstance(line, Record) and isinstance(line.event, ev.ReplicaExited) and line.event.replica == r("ps/1"):
            line = msgspec.structs.replace(line, reason=reason)
        changed.append(line)
    found = [complaint for complaint in complaints(changed) if complaint.rule == "R16"]
    assert bool(found) is not is_found


def test_a_start_with_a_store_that_was_not_opened():
    lines = with_starts(record(), lambda start: msgspec.structs.replace(start, master_port=1))
    assert "R4" in rules(lines)


def test_an_attempt_that_was_there_before():
    lines = with_starts(record("ps/0@20s"), lambda start: msgspec.structs.replace(start, attempt=1))
    assert "R20" in rules(lines)


def test_ranks_with_a_hole():
    lines = with_starts(record(), lambda start: msgspec.structs.replace(start, rank=start.rank + 1))
    assert "R3" in rules(lines)


def test_a_source_that_has_just_come():
    late = with_starts(record("trainer/0@20s:exit=3"), lambda start: msgspec.structs.replace(start, source_rank=0))
    assert "R3" in rules(late)


def test_a_role_that_does_not_wait_for_its_gate():
    lines = record()
    first = next(line for line in lines if isinstance(line, Record) and line.effects)
    early = msgspec.structs.replace(first, effects=(*first.effects, OpenStore("node0", "trainer", 1)))
    assert "R1" in rules([early if line is first else line for line in lines])


def said(talk: Talk, *events: ev.Event) -> str:
    """Return all that the controller says in a conversation that ends with these events, as the reason of one line."""
    for event in events:
        talk.tell(event)
    talk.wait(60)
    return "; ".join(talk.texts())


def trainers(nodes: int = 1, **fields: object) -> Talk:
    return joined(role("trainer", max_replicas=2, **fields), nodes=nodes, cpu=2 / nodes)


def failed(talk: Talk) -> ev.ReplicaExited:
    return ev.ReplicaExited(r("trainer/1"), talk.replica("trainer/1").attempt, "exit", 1)


def test_the_phrases_that_the_judge_reads_are_those_of_the_controller():
    """A phrase that no message has any more would switch a check off."""
    talk = trainers(min_replicas=2, restart=restart())
    text = said(talk, failed(talk))
    assert phrases.FAILED.findall(text) == [("trainer", "1")]
    assert any(one.startswith(phrases.INCIDENT) for one in talk.texts())
    talk = trainers(min_replicas=2, restart=restart(), hang_after_ns=10 * SECOND)
    stalled = ev.ReplicaStalled(r("trainer/1"), 1, "progress", 10 * SECOND, was_seen=True)
    assert (found := phrases.HANGS.search(said(talk, stalled))) is not None and found.groups() == ("trainer", "1")
    talk = trainers(nodes=2, min_replicas=1, restart=restart())
    again = ev.NodeJoined("node1", talk.graph.cluster.nodes[1], incarnation=2)
    assert (found := phrases.GROWS.search(said(talk, ev.NodeGone("node1"), again))) is not None
    assert found[1].startswith("trainer/")
    rules = (Rule("ignore", kind="node_lost"),)
    ignoring = trainers(nodes=2, gang=False, min_replicas=1, restart=restart(rules=rules))
    assert phrases.IGNORED in said(ignoring, ev.NodeGone("node1"))
    talk = trainers(nodes=2, min_replicas=2, restart=restart())
    assert phrases.REFUSED in said(talk, ev.DrainRequested("node1"))
    talk = trainers(min_replicas=2)
    verdict = f"{phrases.JOB_FAILS}trainer/1 failed on"
    assert any(one.startswith(verdict) for one in said(talk, failed(talk)).split("; "))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_endings_that_the_judge_reads_are_those_of_the_controller(number: int):
    talk = trainers(min_replicas=2)
    succeeded = [ev.ReplicaExited(r(f"trainer/{index}"), 1) for index in range(2)]
    events = [succeeded, [failed(talk)], [ev.CancelRequested("enough")]][number]
    said(talk, *events)
    assert talk.job.outcome is not None
    assert any(text.startswith(phrases.ENDINGS[number]) for text in talk.texts())
