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
from flowdist.graph import SECOND, RestartPolicy, RoleGraph
from flowdist.record.journal import Header, Line, record
from flowdist.sim.simulation import SimResult, Simulation
from tests.control.harness import graph, role

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"


def simulated(name: str, *faults: str, **params: object) -> SimResult:
    loaded = load_topology(str(TOPOLOGIES / name), {key: str(value) for key, value in params.items()})
    return Simulation(loaded.graph, Plan(tuple(parse_fault(text) for text in faults))).run()


class Conversation:
    """A controller whose agents answer at once, and the record of what it hears and decides.

    Attributes:
        now: Time of the next event, in ns.
    """

    def __init__(self, job: RoleGraph, run_id: str = "") -> None:
        names = tuple(node.name for node in job.cluster.nodes)
        self.controller, self.header = Controller(job, names), Header(job, names, run_id)
        self.lines: list[Line] = []
        self.now = self._events = 0
        for node in job.cluster.nodes:
            self.tell(ev.NodeJoined(node.name, node))

    def tell(self, event: ev.Event) -> None:
        queue = [event]
        while queue:
            event, self._events = queue.pop(0), self._events + 1
            effects = self.controller.handle(event, self.now)
            self.lines.append(record(self._events, self.now, event, effects))
            for effect in effects:
                queue += _answers(effect)


def crash_loop(replicas: int, incidents: int) -> tuple[Header, list[Line]]:
    """Return the record of a gang with a replica on each node, which fails a minute after each start."""
    policy = RestartPolicy(scope="role", max_restarts=incidents + 1, backoff_ns=0)
    trainer = role("trainer", min_replicas=1, max_replicas=replicas, restart=policy)
    talk = Conversation(graph(trainer, nodes=replicas, cpu=1.0))
    for number in range(incidents):
        talk.now += 60 * SECOND
        loser = talk.controller.state.replicas[ReplicaId("trainer", number % replicas)]
        talk.tell(ev.CheckpointOffered(loser.id, loser.attempt, number + 1, f"step-{number}", number))
        talk.now += 10 * SECOND
        talk.tell(ev.ReplicaExited(loser.id, loser.attempt, "exit", 3, detail="</script><b>ValueError</b>"))
    return talk.header, talk.lines


def _answers(effect: Effect) -> Iterator[ev.Event]:
    match effect:
        case OpenStore():
            yield ev.StoreOpened(effect.world, effect.generation, 29500)
        case StartReplica():
            yield ev.ReplicaStarted(effect.replica, effect.attempt)
        case StopReplica():
            yield ev.ReplicaStopped(effect.replica, effect.attempt)
