"""How witnesses are compared: ties are none, and everything else is a difference. Planted bugs are found."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol.effects import StopReplica
from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import ReplicaId
from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.graph import MINUTE, MS, SECOND, RoleGraph
from flowdist.record.journal import Header, Line, Record
from flowdist.sim.result import SimResult
from flowdist.sim.simulation import Simulation
from flowdist.sim.workers.services import Services
from tests.witnesses.decisions import TIE_NS, Decision, decisions_of, first_difference
from tests.witnesses.judge import LEAST_NS, MOST_NS, Verdict, beyond, intervals_of, noise_of, play
from tests.witnesses.pairs import draw


def at(ms: int, what: str, world: str, *rest: str) -> Decision:
    return Decision(what, world, rest, frozenset([world]), ms * MS)


def test_decisions_about_different_worlds_at_nearly_one_moment_are_a_tie() -> None:
    a = [at(0, "starts", "ps/0"), at(10, "starts", "trainer")]
    b = [at(5, "starts", "trainer"), at(90, "starts", "ps/0")]
    assert first_difference(a, b) is None


def test_decisions_about_one_world_are_never_a_tie() -> None:
    a = [at(0, "stops", "trainer"), at(1, "starts", "trainer")]
    difference = first_difference(a, a[::-1])
    assert difference is not None and "stops trainer" in difference.text


def test_decisions_that_are_far_apart_in_one_of_the_records_are_no_tie() -> None:
    a = [at(0, "starts", "ps/0"), at(10, "starts", "trainer")]
    b = [at(0, "starts", "trainer"), at(TIE_NS // MS + 1, "starts", "ps/0")]
    assert first_difference(a, b) is not None


def test_a_decision_that_one_record_lacks_or_decides_otherwise_is_a_difference() -> None:
    a = [at(0, "starts", "trainer"), at(500, "incident closes:", "trainer/0", "charged to trainer")]
    b = [at(0, "starts", "trainer"), at(500, "incident closes:", "trainer/0", "charged to nobody")]
    for other in (a[:1], b):
        difference = first_difference(a, other)
        assert difference is not None and difference.a == 1 and "charged to trainer" in difference.text


def graph_of(number: int, folder: Path, *sets: str) -> RoleGraph:
    draw(1, number).write(folder)
    return load_topology(str(folder / "topology.py"), {}, sets).graph


def simulated(graph: RoleGraph, *faults: str) -> list[Decision]:
    header, *lines = Simulation(graph, parse_plan(faults)).run(60 * SECOND).lines
    assert isinstance(header, Header)
    return decisions_of(header, lines)


def test_all_pairs_can_be_drawn_again_and_have_no_mistake(tmp_path: Path) -> None:
    kinds = set()
    for number in range(1, 61):
        pair = draw(1, number)
        assert pair == draw(1, number) and pair != draw(2, number)
        graph = graph_of(number, tmp_path / str(number))
        kinds |= {fault.kind for fault in parse_plan(pair.faults).faults}
        assert {fault.partition("/")[0] for fault in pair.rehearsal} == {role.name for role in graph.roles}
    assert kinds >= {"kill", "exit", "oom", "hang", "leave", "lost", "preempt", "drain", "scale"}


def test_the_order_of_simultaneous_events_in_a_simulation_is_a_tie_and_another_policy_is_none(tmp_path: Path) -> None:
    """The same job under another schedule, and with another budget, back-off, or place for its workers."""
    fault = "trainer/0@checkpoint=trainer,2+100ms:exit=3"
    graph = graph_of(9, tmp_path)
    story = simulated(graph, fault)
    header, *lines = Simulation(graph, parse_plan([fault]), schedule=7).run(60 * SECOND).lines
    assert isinstance(header, Header) and first_difference(story, decisions_of(header, lines)) is None
    for change in ("trainer.restart.max_restarts=0", "trainer.stop_grace=300ms", "trainer.placement=pack"):
        other = simulated(graph_of(9, tmp_path, change), fault)
        assert first_difference(story, other) is not None, change


def test_whether_a_worker_that_has_just_finished_is_told_to_stop_is_a_tie(tmp_path: Path) -> None:
    """In pair 11, a task beside the trainers fails twice, and the job with it."""
    plan = parse_plan([f"solo/0@checkpoint=trainer,{n}+100ms:exit=3" for n in (1, 2)])
    header, *lines = Simulation(graph_of(11, tmp_path), plan).run(MINUTE).lines
    assert isinstance(header, Header)
    late = ReplicaId("trainer", 2)

    def finished(ms_before: int) -> list[Decision]:
        changed: list[Line] = []
        for line in lines:
            if isinstance(line, Record) and any(isinstance(each, StopReplica) for each in line.effects):
                changed.append(Record(line.n, line.t_ns - ms_before * MS, ReplicaExited(late, 1)))
                kept = [each for each in line.effects if not isinstance(each, StopReplica) or each.replica != late]
                line = msgspec.structs.replace(line, effects=tuple(kept))
            changed.append(line)
        return decisions_of(header, sorted(changed, key=lambda line: line.t_ns))  # type: ignore[union-attr]

    story = decisions_of(header, lines)
    assert any(one.what == "stops" and one.about == "trainer" for one in story)
    assert first_difference(story, finished(TIE_NS // MS)) is None
    assert first_difference(story, finished(TIE_NS // MS + 1)) is not None


def verdict(first: int, second: int, simulation: int, **more: object) -> Verdict:
    times = {"trainer": {"lost work": (first * MS, second * MS, simulation * MS)}}
    return Verdict(1, times=times, **more)  # type: ignore[arg-type]


def test_a_simulation_may_be_as_far_from_a_real_run_as_real_runs_are_from_each_other() -> None:
    noise = noise_of([verdict(1000, 1400, 0), verdict(0, 9000, 0, is_race=True)])
    assert noise == {"lost work": 400 * MS} and noise_of([verdict(7, 8, 0)]) == {"lost work": LEAST_NS}
    assert not list(beyond(verdict(2000, 2300, 2690), noise)) and not list(beyond(verdict(2000, 2300, 1610), noise))
    assert len(list(beyond(verdict(2000, 2300, 2710), noise))) == 1
    assert not list(beyond(verdict(2000, 2300, 2710, intervals={"trainer": 20 * MS}), noise))


def test_a_fault_aside_from_checkpoints_may_keep_or_lose_an_interval_of_the_trainers_and_their_services(
    tmp_path: Path,
) -> None:
    """Pair 6 has one such fault, before or after the third checkpoint. Pair 9 has none."""
    graph = graph_of(6, tmp_path / "6")
    starts = [Decision("starts", f"evaluator/{n}", (), frozenset(), 0) for n in (0, 0)]
    found = intervals_of(draw(1, 6), graph, starts)
    assert found == {"ps": 500 * MS, "trainer": 500 * MS, "evaluator": 1000 * MS}
    assert not any(intervals_of(draw(1, 9), graph_of(9, tmp_path / "9"), ()).values())


def test_one_noisy_pair_does_not_excuse_all_others() -> None:
    assert noise_of([verdict(0, 9000, 0)]) == {"lost work": MOST_NS}


NOISE_NS = 600 * MS  # by which two real runs differ while other programs fill the machine


def is_told_apart(graph: RoleGraph, story: SimResult, other: SimResult) -> bool:
    """Return whether the judge tells two simulations apart, as it does a simulation and a real run."""
    first, second = (decisions_of(one.lines[0], one.lines[1:]) for one in (story, other))  # type: ignore[arg-type]
    times = {}
    for role in graph.roles:
        spent = [{name: ns // role.max_replicas for name, ns in one.spent[role.name].items()} for one in (story, other)]
        times[role.name] = {
            name: (spent[0].get(name, 0), spent[0].get(name, 0), spent[1].get(name, 0))
            for name in dict.fromkeys(name for each in spent for name in each)
        }
    found = beyond(Verdict(1, times=times), defaultdict(lambda: NOISE_NS))
    return first_difference(first, second) is not None or any(found)


def restarts_nobody(graph: RoleGraph) -> RoleGraph:
    roles = []
    for role in graph.roles:
        gates = tuple(msgspec.structs.replace(gate, on_restart="reconnect") for gate in role.gates)
        roles.append(msgspec.structs.replace(role, gates=gates))
    return msgspec.structs.replace(graph, roles=tuple(roles))


@pytest.mark.parametrize("number", [1, 10])
def test_a_simulator_without_the_back_off_is_found(number: int, tmp_path: Path) -> None:
    assert is_found(number, tmp_path, graph_of(number, tmp_path / "bug", "trainer.restart.backoff=0s"))


@pytest.mark.parametrize("number", [7, 16])
def test_a_simulator_whose_worlds_never_grow_again_is_found(number: int, tmp_path: Path) -> None:
    assert is_found(number, tmp_path, graph_of(number, tmp_path / "bug", "trainer.cooldown=1h"))


def test_a_simulator_that_restarts_too_few_is_found(tmp_path: Path) -> None:
    assert is_found(9, tmp_path, restarts_nobody(graph_of(9, tmp_path / "bug")))


@pytest.mark.parametrize("number", [4, 13])
def test_a_simulator_whose_clients_work_while_their_service_is_away_is_found(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, faults = graph_of(number, tmp_path), parse_plan(draw(1, number).faults)
    story = Simulation(graph, faults).run(MINUTE)
    assert not is_told_apart(graph, story, Simulation(graph, faults, schedule=7).run(MINUTE))
    monkeypatch.setattr(Services, "end", lambda *_: None)
    assert is_told_apart(graph, story, Simulation(graph, faults).run(MINUTE))


def is_found(number: int, folder: Path, with_bug: RoleGraph) -> bool:
    """Return whether the judge finds a bug, and none in a simulation that only has another order of ties."""
    graph, faults = graph_of(number, folder), parse_plan(draw(1, number).faults)
    story = Simulation(graph, faults).run(MINUTE)
    assert not is_told_apart(graph, story, Simulation(graph, faults, schedule=7).run(MINUTE))
    return is_told_apart(graph, story, Simulation(with_bug, faults).run(MINUTE))


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_processes_the_simulator_and_the_journal_say_the_same(tmp_path: Path) -> None:
    found = play(draw(1, 14), tmp_path)
    assert not found.differs and found.decisions > 10, found.differs
