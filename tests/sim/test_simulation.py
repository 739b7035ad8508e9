"""The engine: same seed, same bytes; quiet heartbeats that are not played change no decision; nothing runs twice."""

from __future__ import annotations

import cProfile
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_add, parse_fault, parse_scale
from flowdist.graph import HOUR, SECOND, Cluster, Resources, RoleGraph, RoleSpec, parse_duration
from flowdist.record.journal import FaultLine, Record, encode_line
from flowdist.sim.engine.controller import SimController
from flowdist.sim.engine.network import LATENCY_NS, Link
from flowdist.sim.engine.node import RunningAttempts
from flowdist.sim.engine.queue import Queue
from flowdist.sim.faults.nemesis import Nemesis
from flowdist.sim.simulation import Checks, SimResult, Simulation, Violation, with_nodes
from tests.choosing import examples, slow
from tests.control.harness import Gate, graph, r, role

CHECKS: tuple[Checks, ...] = ("all", "paced")
TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"


def load(name: str, **params: object) -> RoleGraph:
    return load_topology(str(TOPOLOGIES / name), {key: str(value) for key, value in params.items()}).graph


def run(graph: RoleGraph, *faults: str, seed: int = 0, play: bool = False, until: int | None = None) -> SimResult:
    return Simulation(graph, Plan(tuple(parse_fault(text) for text in faults)), seed=seed, play_heartbeats=play).run(
        until
    )


def test_the_node_of_a_job_without_nodes_is_the_same_in_every_version_of_python() -> None:
    """From Python 3.12 on, sum() of floats is more precise: it was 3.0000000000000004 before."""
    roles = tuple(
        RoleSpec(f"r{number}", ("true",), resources=Resources(cpu)) for number, cpu in enumerate((0.1, 2.7, 0.2))
    )
    (node,) = with_nodes(RoleGraph("x", roles, cluster=Cluster(given=False))).cluster.nodes
    assert node.cpu == 3.0


def decisions(result: SimResult) -> list[bytes]:
    """Return the events and effects of each moment; those of one moment may come in any order."""
    lines = [msgspec.structs.replace(line, n=0) for line in result.lines if isinstance(line, Record)]
    return [encode_line(line) for line in sorted(lines, key=lambda line: (line.t_ns, encode_line(line)))]


CROWD = ["node3@90s/2m", "node4@90s/2m", "trainer/1@90s", "ps/0@90s", "node7@5m:lost/1m", "node8@5m:lost", "trainer@8m"]


@cache
def crowd(seed: int) -> str:
    """Return the digest of what many nodes go through, everything at the same moments."""
    nodes = examples(16, 64)
    graph = load("ps.py", nodes=nodes, trainers=f"{nodes // 2}:{3 * nodes // 2}", evaluators=5 * nodes // 16)
    return run(graph, *CROWD, seed=seed, until=12 * 60 * SECOND).digest


@pytest.mark.parametrize("seed", [0, *slow([1, 2])])
def test_the_same_seed_gives_the_same_bytes_under_any_hash_seed(seed: int) -> None:
    code = f"from tests.sim.test_simulation import crowd; print(crowd({seed}))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in (("0", "1", "4242", "random") if seed else ("0", "1"))
    }
    assert len(digests) == 1


def test_another_seed_gives_another_course() -> None:
    assert crowd(0) != crowd(1)


FAULTS = ["node0@70s", "node1@70s/30s", "node2@71s:lost/2s", "node3@2m:lost/20s", "node1@3m:leave", "trainer/0@95s",
          "trainer/1@4m:exit=3", "ps/0@100s", "ps/1@5m:oom", "evaluator@2m", "node3@step=trainer,200:lost",
          "node1@150s:cut-to=controller/3s", "node0@4m:pause/2s", "trainer/1@73s:exit=1", "trainer/2@152s:exit=1",
          "trainer/0@123s:exit=1"]  # fmt: skip


@given(st.lists(st.sampled_from(FAULTS), unique=True, max_size=4), st.sampled_from(["restart", "reconnect"]))
@settings(max_examples=8, deadline=None)
def test_quiet_heartbeats_that_are_not_played_change_no_decision(faults: list[str], on_restart: str) -> None:
    topology = load("ps.py", on_restart=on_restart)
    quiet = run(topology, *faults)
    played = run(topology, *faults, play=True)
    assert decisions(quiet) == decisions(played)
    assert quiet.handled < played.handled


@given(st.lists(st.sampled_from(FAULTS), unique=True, max_size=6), st.integers(0, 50))
@settings(max_examples=examples(15, 40), deadline=None)
def test_every_job_ends_whatever_happens_to_it(faults: list[str], seed: int) -> None:
    result = run(load("ps.py"), *faults, seed=seed)
    assert result.violation is None
    assert result.job.outcome is not None
    for spec in result.job.graph.roles:
        spent = result.spent[spec.name]
        assert sum(spent.values()) == result.now * spec.max_replicas and min(spent.values()) >= 0, spent


def test_a_job_that_can_never_go_on_is_a_violation_of_liveness() -> None:
    """The trainer waits for a helper that has been given up."""

    result = run(load("gang.py"), "trainer/0@1m:hang")  # and nobody said hang_after
    assert result.violation is not None and "trainer/0 to finish" in str(result.violation)


def test_two_attempts_at_once_are_seen() -> None:
    running = RunningAttempts(Queue())
    running.began(r("trainer/0"), 1)
    with pytest.raises(Violation, match="split brain: trainer/0 runs as attempt 2 while attempt 1 does"):
        running.began(r("trainer/0"), 2)


def test_a_lost_node_is_fenced_before_its_replicas_run_elsewhere() -> None:
    result = run(load("gang.py", replicas="3"), "node1@2m:lost")
    assert result.violation is None and result.job.replicas[r("trainer/1")].attempt == 2
    lost = next(line for line in result.lines if isinstance(line, Record) and type(line.event).__name__ == "NodeSilent")
    assert 4 * SECOND < lost.t_ns - 120 * SECOND <= 5 * SECOND


def test_scale_and_add_are_events_of_the_job() -> None:
    topology = load("gang.py", nodes=3, replicas="1:4")
    simulation = Simulation(topology, Plan((), (parse_scale("trainer=2@3m"),), (parse_add("node9@1m"),)))
    result = simulation.run()
    sizes = [
        len(line.effects) for line in result.lines if isinstance(line, Record) and line.reason.startswith("trainer: s")
    ]
    assert result.job.outcome == "succeeded" and sizes
    assert result.job.nodes["node9"].usable and len(result.job.worlds["trainer"].members) == 2


def test_until_stops_the_clock() -> None:
    result = run(load("gang.py"), until=30 * SECOND)
    assert result.now == 30 * SECOND and result.job.outcome is None and result.violation is None


def test_a_service_that_comes_back_before_its_trainers_step_stops_nobody() -> None:
    server = role("ps", kind="service")
    topology = graph(server, role("trainer", gates=(Gate("ps", "started"),)), nodes=2, cpu=1)
    result = run(topology, "node0@1s/5s")
    assert result.violation is None and result.job.outcome == "succeeded"


def test_lost_work_is_what_was_done_since_the_last_checkpoint() -> None:
    result = run(load("gang.py", nodes=2, replicas="2"), "trainer/0@100s")
    model = result.models["trainer"]
    # up at 5 s, a checkpoint after 60 s of work (66 s), then 34 steps until the fault
    assert model.lost_steps == 33 or model.lost_steps == 34
    assert model.lost_ns == pytest.approx(34 * SECOND, abs=0.1 * SECOND)  # the step that it was in counts, too


def test_every_repeats() -> None:
    result = run(load("gang.py", max_restarts=20), "trainer/0@every=3m")
    fired = [line.t_ns for line in result.lines if isinstance(line, FaultLine)]
    assert fired[:3] == [180 * SECOND, 360 * SECOND, 540 * SECOND]


def test_milestones_fire_once_at_their_moment() -> None:
    result = run(load("gang.py"), "trainer/0@step=trainer,100+500ms", "node1@generation=trainer,2")
    lines = [line for line in result.lines if isinstance(line, FaultLine)]
    assert [line.spec for line in lines] == ["trainer/0@step=trainer,100+500ms", "node1@generation=trainer,2"]
    # 100 steps after a start-up of 5 s and one checkpoint, and half a second more
    assert 106.5 * SECOND < lines[0].t_ns < 107.6 * SECOND


def order_of(schedule: int) -> list[int]:
    """Return the order of a hundred actions of one time, planned from 0 to 99, after one before them."""
    queue, seen = Queue(schedule), []
    for i in range(100):
        queue.at(5, seen.append, i)
    queue.at(4, seen.append, -1)
    queue.run()
    return seen


def test_of_two_things_at_once_the_first_planned_happens_first() -> None:
    assert order_of(0) == [-1, *range(100)]


def test_a_schedule_seed_orders_what_happens_at_once_always_in_the_same_way() -> None:
    orders = [order_of(schedule) for schedule in range(1, 6)]
    assert [sorted(order) for order in orders] == [[-1, *range(100)]] * 5
    assert all(order[0] == -1 for order in orders)  # time goes first
    assert len({tuple(order) for order in orders}) == 5
    assert order_of(3) == orders[2]


@pytest.mark.parametrize("apart", [0, 1])
def test_messages_of_a_link_keep_their_order_whatever_the_schedule(apart: int) -> None:
    link = Link("node0", seed=0, apart_ns=apart)
    times = [link.arrivals("up", now)[0] for now in (0, 0, 0, 1, LATENCY_NS)]
    assert times == sorted(times)
    assert (len(set(times)) == len(times)) == bool(apart)


@pytest.mark.parametrize("name", ["ps.py", "actors.py"])
def test_in_whatever_order_things_happen_at_once_the_job_recovers(name: str) -> None:
    graph, digests = load(name), set()
    for schedule in range(8):
        faults = Plan(tuple(map(parse_fault, ["node1@1m/30s", "node2@1m/30s", "controller@1m50ms"])))
        result = Simulation(graph, faults, schedule=schedule).run(HOUR)
        assert (result.job.outcome, result.violation) == ("succeeded", None)
        assert Simulation(graph, faults, schedule=schedule).run(HOUR).digest == result.digest
        digests.add(result.digest)
    assert len(digests) > 4  # it is another order indeed


def test_an_hour_on_eight_nodes_takes_few_events() -> None:
    """The number of calls is asserted here; benchmarks/simulate_hour.py has the times."""
    topology = load("ps.py", nodes=8, trainers="2:8")
    result = run(topology, "node1@9m/2m", "trainer/0@20m", "node2@30m:lost/1m", "ps/0@40m", until=HOUR)
    assert result.handled < 3000


def test_simulate_from_the_command_line(tmp_path: Path) -> None:
    flowdist = [sys.executable, "-m", "flowdist"]
    target = str(TOPOLOGIES / "gang.py")
    trace = tmp_path / "trace.jsonl"
    arguments = ["simulate", target, "--fail", "node1@2m/1m", "--json", "--trace", str(trace)]
    done = subprocess.run([*flowdist, *arguments], capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    assert summary["outcome"] == "succeeded" and summary["roles"]["trainer"]["generations"] == 3
    replayed = subprocess.run([*flowdist, "replay", str(trace), "--json"], capture_output=True, text=True, check=True)
    again = json.loads(replayed.stdout)
    assert again["differs_at"] is None and again["digest"] == summary["digest"]
    failed = subprocess.run(
        [*flowdist, "simulate", target, "--fail", "trainer/0@every=90s"], capture_output=True, check=False
    )
    assert failed.returncode == 1


def test_no_torch_for_simulate() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from flowdist.cli.simulate.simulate import command;"
        f"r = CliRunner().invoke(command, ['{TOPOLOGIES / 'gang.py'}']); assert r.exit_code == 0, r.output;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def large(nodes: int, *faults: str, checks: Checks = "paced", spoil_at: str = "") -> SimResult:
    """Run an elastic gang of as many trainers as nodes; its state can be corrupted at a time."""
    params = {"replicas": f"{nodes // 2}:{nodes}", "nodes": nodes}
    simulation = Simulation(load("gang.py", **params), Plan(tuple(map(parse_fault, faults))), checks=checks)
    if spoil_at:
        simulation.queue.at(parse_duration(spoil_at), lambda: simulation.job.roles["trainer"].seated.update(running=7))
    return simulation.run()


@pytest.mark.parametrize("faults", [("node7@30s",), ("node3@20s/1m", "controller@80s", "trainer/9@3m:hang")])
def test_however_often_it_is_checked_everything_is_decided_as_ever(faults: tuple[str, ...]) -> None:
    assert large(90, *faults).digest == large(90, *faults, checks="all").digest


def test_what_is_wrong_in_a_large_job_is_found_soon_and_said_to_be_older() -> None:
    at_once, soon = (large(90, "node7@40s", checks=checks, spoil_at="30s").violation for checks in CHECKS)
    assert at_once is not None and soon is not None and at_once.property == soon.property == "invariant"
    assert str(at_once).startswith("invariant: trainer: miscounted")
    assert "trainer: miscounted" in str(soon) and "; everything held after event" in str(soon)


def test_the_work_of_a_simulation_grows_with_its_nodes_and_not_with_their_square() -> None:
    few, many = (_calls(nodes) for nodes in (100, 400))
    assert many < 5 * few, f"{many} calls for four times as many nodes, not {few}"


def _calls(nodes: int) -> int:
    profile = cProfile.Profile()
    result = profile.runcall(large, nodes, "node7@30s")
    assert result.violation is None and result.job.outcome == "succeeded"
    return sum(entry.callcount for entry in profile.getstats())


def test_whoever_waits_is_told_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    graph = load("gang.py", replicas="20:40", nodes=40)
    Simulation(graph, tell=lambda now, events: told.append((now, events))).run()
    assert len(told) > 2 and told == sorted(told)


def test_the_simulator_knows_of_each_node_whether_it_is_heard_as_the_links_do() -> None:
    """`SimNode.is_heard` is a copy, updated where the state changes; a node that is not heard plays each heartbeat."""
    unlike = 0

    class Watched(SimController):
        def plan(self) -> None:
            super().plan()
            nonlocal unlike
            for name, node in self._nodes.items():
                unlike += node.is_heard != self.sessions.detector.is_heard(name) and not self._ctx.is_down
                seen.add(node.is_heard)

    class WatchedSimulation(Simulation):
        def _new_controller(self, checks: Checks) -> SimController:
            return Watched(self.ctx, self.nodes, self, checks)

    seen: set[bool] = set()
    graph = load("ps.py", nodes=8, trainers="2:8", max_restarts=9)
    nemesis = Nemesis(graph, HOUR // 6)
    for seed in range(1, 40):
        WatchedSimulation(graph, nemesis.plan(seed), seed=seed, schedule=seed, fast_forward=True).run(HOUR)
    assert not unlike and seen == {True, False}
