"""Records for tests: simulated ones, and one of any size from a conversation with a controller."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Effect, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import SECOND, RestartPolicy
from flowdist.record.journal import Header, Line, record
from flowdist.sim.simulation import SimResult, Simulation
from tests.control.harness import graph, role

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"


def simulated(name: str, *faults: str, **params: object) -> SimResult:
    loaded = load_topology(str(TOPOLOGIES / name), {key: str(value) for key, value in params.items()})
    return Simulation(loaded.graph, Plan(tuple(parse_fault(text) for text in faults))).run()


def crash_loop(replicas: int, incidents: int) -> tuple[Header, list[Line]]:
    """Return the record of a gang with a replica on each node, which fails a minute after each start."""
    policy = RestartPolicy(scope="role", max_restarts=incidents + 1, backoff_ns=0)
    made = graph(role("trainer", min_replicas=1, max_replicas=replicas, restart=policy), nodes=replicas, cpu=1.0)
    names = tuple(node.name for node in made.cluster.nodes)
    controller, header = Controller(made, names), Header(made, names)
    lines: list[Line] = []
    now = 0

    def tell(event: ev.Event) -> None:
        queue = [event]
        while queue:
            event = queue.pop(0)
            effects = controller.handle(event, now)
            lines.append(record(len(lines) + 1, now, event, effects))
            for effect in effects:
                queue += _answers(effect)

    for node in made.cluster.nodes:
        tell(ev.NodeJoined(node.name, node))
    for number in range(incidents):
        now += 60 * SECOND
        loser = controller.state.replicas[ReplicaId("trainer", number % replicas)]
        tell(ev.CheckpointOffered(loser.id, loser.attempt, number + 1, f"step-{number}", number))
        now += 10 * SECOND
        tell(ev.ReplicaExited(loser.id, loser.attempt, "exit", 3, detail="</script><b>ValueError</b>"))
    return header, lines


def _answers(effect: Effect) -> Iterator[ev.Event]:
    match effect:
        case OpenStore():
            yield ev.StoreOpened(effect.world, effect.generation, 29500)
        case StartReplica():
            yield ev.ReplicaStarted(effect.replica, effect.attempt)
        case StopReplica():
            yield ev.ReplicaStopped(effect.replica, effect.attempt)
