"""What an event costs the controller: CPU time by the kind of event, in jobs of 10 to 10,000 nodes.

    python benchmarks/controller_events.py [--nodes 10 100 1000 10000] [--repeats 3] [--json]

No driver and no process: events go into the pure controller, its orders come back, and agents that answer at once are
a few lines of this file. Time is that of handling the events alone; the best of the repeats counts, each in a job of
its own. `growth` is what an event costs at the largest size, in terms of the smallest: 1 is none.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterable, Iterator

from flowdist.control.connection.sessions import Sessions
from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Effect, OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Heartbeat, Join
from flowdist.graph import (
    HOUR,
    SECOND,
    Cluster,
    Gate,
    JobOptions,
    NodeSpec,
    Placement,
    Readiness,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
)

SIZES = [10, 100, 1000, 10_000]
EVENTS_MIN = 1000  # to a measurement
CYCLES_MAX = 1000  # of what is repeated, replica by replica, in a large job
ALWAYS = RestartPolicy("replica", max_restarts=1_000_000, within_ns=HOUR, backoff_ns=0)


class Cost:
    """CPU time and the events that it went to."""

    def __init__(self) -> None:
        self.seconds, self.events = 0.0, 0

    @property
    def us(self) -> float:
        return 1e6 * self.seconds / max(1, self.events)


class Job:
    """A controller, and agents that do at once what they are told."""

    def __init__(self, graph: RoleGraph) -> None:
        self.graph = graph
        self.controller = Controller(graph, tuple(node.name for node in graph.cluster.nodes))
        self.now = 0
        self.incarnation = 1

    def handle(self, events: Iterable[ev.Event], cost: Cost) -> list[Effect]:
        """The events, one after the other; only that is timed."""
        events, effects, handle, now = list(events), [], self.controller.handle, self.now
        start = time.process_time()
        for event in events:
            effects += handle(event, now)
        cost.seconds += time.process_time() - start
        cost.events += len(events)
        assert self.controller.state.ending is None, self.controller.state.ending_reason
        return effects

    def play(self, events: Iterable[ev.Event], cost: Cost) -> None:
        """The events and the agents' answers to what follows, until nothing does."""
        effects = self.handle(events, cost)
        while answers := list(self.answers(effects)):
            effects = self.handle(answers, cost)

    def answers(self, effects: Iterable[Effect]) -> Iterator[ev.Event]:
        for effect in effects:
            match effect:
                case OpenStore():
                    yield ev.StoreOpened(effect.world, effect.generation, 29500)
                case StartReplica():
                    ports = self.graph.role(effect.replica.role).ports
                    chosen = tuple((port, 4000 + effect.replica.index) for port in ports)
                    yield ev.ReplicaStarted(effect.replica, effect.attempt, chosen)
                    if self.graph.role(effect.replica.role).ready is not None:
                        yield ev.ReplicaReady(effect.replica, effect.attempt)
                case StopReplica():
                    yield ev.ReplicaStopped(effect.replica, effect.attempt)

    def start(self) -> Cost:
        """All nodes join, everything starts."""
        cost = Cost()
        self.play([ev.NodeJoined(node.name, node) for node in self.graph.cluster.nodes], cost)
        assert all(replica.is_up for replica in self.controller.state.replicas.values())
        return cost

    def later(self) -> None:
        """So much later that no failure counts against a node any more."""
        self.now += 2 * HOUR

    def node_of(self, replica: ReplicaId) -> NodeSpec:
        name = self.controller.state.replicas[replica].node
        return next(node for node in self.graph.cluster.nodes if node.name == name)

    def attempt(self, replica: ReplicaId) -> int:
        return self.controller.state.replicas[replica].attempt

    def progressed(self, replica: ReplicaId, step: int) -> ev.Event:
        return ev.ReplicaProgressed(replica, self.attempt(replica), step)

    def offered(self, replica: ReplicaId, step: int) -> ev.Event:
        generation = self.controller.state.worlds[replica.role].generation
        return ev.CheckpointOffered(replica, self.attempt(replica), generation, f"/checkpoints/{step}", step)

    def restart(self, replicas: Iterable[ReplicaId], cost: Cost) -> None:
        """They exit, all at once, and run again."""
        self.play([ev.ReplicaExited(replica, self.attempt(replica), "exit", 1) for replica in replicas], cost)
        assert not self.controller.state.open, "an incident waits for something"

    def lose(self, node: NodeSpec, cost: Cost) -> None:
        """The node dies, and is back when all that follows has happened."""
        self.incarnation += 1
        self.play([ev.NodeGone(node.name)], cost)
        self.play([ev.NodeJoined(node.name, node, incarnation=self.incarnation)], cost)
        assert not self.controller.state.open, "an incident waits for something"


def role(name: str, count: int, **fields: object) -> RoleSpec:
    size = Resources(cpu=1.0)
    return RoleSpec(name, ("true",), min_replicas=count, max_replicas=count, resources=size, **fields)  # type: ignore[arg-type]


def loose(name: str, count: int, **fields: object) -> RoleSpec:
    return role(name, count, gang=False, restart=ALWAYS, **fields)


def nodes(count: int, cpu: float, pool: str = "main") -> tuple[NodeSpec, ...]:
    return tuple(NodeSpec(f"{pool}{i}", cpu=cpu, labels=(("pool", pool),)) for i in range(count))


def job_of(roles: tuple[RoleSpec, ...], *pools: tuple[NodeSpec, ...]) -> Job:
    return Job(RoleGraph("bench", roles, cluster=Cluster(sum(pools, ()))))


def gang(n: int) -> Job:
    """A gang of n on n nodes."""
    ready = Readiness("call")
    return job_of((role("trainer", n, ready=ready, restart=RestartPolicy("role", max_restarts=3)),), nodes(n, 1))


def served(n: int) -> Job:
    """n loose servers with ports, and a gang of n that depends on them, on n nodes."""
    return job_of(_served(n), nodes(n, 2))


def _served(n: int, **fields: object) -> tuple[RoleSpec, ...]:
    server = loose("server", n, kind="service", ports=("rpc",), ready=Readiness("tcp", "rpc"), **fields)
    gate = Gate("server", "ready", "reconnect")
    return server, role("trainer", n, gates=(gate,), restart=RestartPolicy("role", max_restarts=3), **fields)


def workers(n: int, spare: int) -> Job:
    """n loose workers on as many nodes, and some nodes more."""
    return job_of((loose("worker", n),), nodes(n + spare, 1))


def mixed(n: int) -> Job:
    """Servers and a gang on four nodes of five, on the fifth loose workers; one node is spare."""
    others = max(3, n // 5)
    on_main, on_loose = (Placement(where=(("pool", pool),)) for pool in ("main", "loose"))
    roles = (*_served(n - others, placement=on_main), loose("worker", others - 1, placement=on_loose))
    return job_of(roles, nodes(n - others, 2), nodes(others, 1, "loose"))


def formation(n: int, kind: str) -> Cost:
    """A gang starts, then gets ready: the events of each replica are said apart."""
    job, costs = gang(n), {"joined": Cost(), "started": Cost(), "ready": Cost()}
    opened = job.handle([ev.NodeJoined(node.name, node) for node in job.graph.cluster.nodes], costs["joined"])
    starts = job.handle(job.answers(opened), costs["joined"])
    answers = list(job.answers(starts))
    job.handle([answer for answer in answers if isinstance(answer, ev.ReplicaStarted)], costs["started"])
    job.handle([answer for answer in answers if isinstance(answer, ev.ReplicaReady)], costs["ready"])
    assert job.controller.state.worlds["trainer"].counts["ready"] == n
    return costs[kind]


def told(n: int, kind: str) -> Cost:
    """What a running gang tells of itself."""
    job, cost = gang(n), Cost()
    job.start()
    members = [ReplicaId("trainer", i % n) for i in range(CYCLES_MAX)]
    say = job.progressed if kind == "progress" else job.offered
    job.handle([say(replica, step) for step, replica in enumerate(members)], cost)
    return cost


def stalls(n: int) -> Cost:
    """Every member of a gang falls silent, one after the other, and revives."""
    job, cost = gang(n), Cost()
    job.start()
    members = [ReplicaId("trainer", i) for i in range(n)]
    job.handle([ev.ReplicaStalled(replica, 1, "output", 60 * SECOND) for replica in members], cost)
    job.handle([ev.ReplicaRevived(replica, 1) for replica in members], cost)
    return cost


def restarts(n: int, name: str) -> Cost:
    """Loose replicas exit and are started again, one after the other, on their own nodes."""
    job, cost = workers(n, 0) if name == "worker" else served(n), Cost()
    job.start()
    for i in range(min(n, CYCLES_MAX)):
        job.later()
        job.restart([ReplicaId(name, i)], cost)
    return cost


def storm(n: int) -> Cost:
    """All loose replicas exit in the same moment."""
    job, cost = workers(n, 0), Cost()
    job.start()
    job.later()
    job.restart([ReplicaId("worker", i) for i in range(n)], cost)
    return cost


def node_losses(n: int, spare: int) -> Cost:
    """Nodes with one loose replica each die and come back, one after the other.

    With a spare node the replica moves there, without one it waits for its node.
    """
    job, cost = workers(n, spare), Cost()
    job.start()
    for i in range(min(n, CYCLES_MAX)):
        job.later()
        job.lose(job.node_of(ReplicaId("worker", i)), cost)
    return cost


def moved_servers(n: int) -> Cost:
    """A server moves to another node and so has another address: an event here is one replica that is told of it."""
    server, trainer = _served(n)
    job, cost = job_of((server, trainer), nodes(n, 1), nodes(n + 1, 1, "more")), Cost()
    job.start()
    job.later()
    job.play([ev.NodeGone(job.node_of(ReplicaId("server", 0)).name)], cost)
    cost.events += n
    return cost


def heartbeats(n: int) -> Cost:
    """Two rounds of heartbeats of all nodes, with a look at what is due after each."""
    sessions, cost = Sessions(JobOptions()), Cost()
    for node in nodes(n, 1):
        sessions.hear(Join(node.name, 1, node, "127.0.0.1", 0), 0)
    for now in (SECOND // 2, SECOND):
        beats = [Heartbeat(node.name, 1, 0, now - SECOND // 2) for node in nodes(n, 1)]
        start = time.process_time()
        for beat in beats:
            sessions.hear(beat, now)
            sessions.detector.deadline()
        cost.seconds += time.process_time() - start
        cost.events += n
    return cost


def stream(n: int) -> Cost:
    """Of 100 events 65 are progress, 10 checkpoints, 16 of restarts of servers, the rest of nodes that come and go."""
    job, cost = mixed(n), Cost()
    job.start()
    size = job.graph.role("trainer").max_replicas
    workers = job.graph.role("worker").max_replicas
    for i in range(50):
        job.later()
        members = [ReplicaId("trainer", (65 * i + j) % size) for j in range(65)]
        job.handle([job.progressed(member, 65 * i + j) for j, member in enumerate(members)], cost)
        job.handle([job.offered(member, 65 * i + j) for j, member in enumerate(members[:10])], cost)
        for j in range(4):
            job.restart([ReplicaId("server", (4 * i + j) % size)], cost)
        for j in range(2):
            job.lose(job.node_of(ReplicaId("worker", (2 * i + j) % workers)), cost)
    return cost


KINDS: dict[str, Callable[[int], Cost]] = {
    "a gang forms: a node joins": functools.partial(formation, kind="joined"),
    "a gang forms: a replica has started": functools.partial(formation, kind="started"),
    "a gang forms: a replica is ready": functools.partial(formation, kind="ready"),
    "progress": functools.partial(told, kind="progress"),
    "a checkpoint is offered": functools.partial(told, kind="offered"),
    "a member stalls, or revives": stalls,
    "a loose worker exits and restarts": functools.partial(restarts, name="worker"),
    "a server exits and restarts": functools.partial(restarts, name="server"),
    "all loose workers exit at once": storm,
    "a node dies and returns, its replica moves": functools.partial(node_losses, spare=1),
    "a node dies and returns, its replica waits": functools.partial(node_losses, spare=0),
    "a server moves, for each who is told": moved_servers,
    "a heartbeat": heartbeats,
    "a mixed stream": stream,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="kinds with this in their name")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = {kind: run for kind, run in KINDS.items() if options.only in kind}
    sizes = sorted(options.nodes)
    if not options.json:
        print("us of CPU for an event, in a job of so many nodes")
        print(f"{'':44}{''.join(f'{size:>9}' for size in sizes)}   growth   events/s at {sizes[-1]}")
    found = {}
    for kind, run in kinds.items():
        found[kind] = {size: min(measured(run, size).us for _ in range(options.repeats)) for size in sizes}
        if not options.json:
            print(line(kind, list(found[kind].values())), flush=True)
    forming = min(gang(sizes[-1]).start().seconds for _ in range(options.repeats)) if not options.only else 0.0
    if options.json:
        print(json.dumps({"us_per_event": found, "formation_s": {sizes[-1]: forming}}))
    else:
        print(f"a gang of {sizes[-1]} on as many nodes forms, from the first join to the last ready: {forming:.2f} s")


def measured(run: Callable[[int], Cost], size: int) -> Cost:
    """Of small jobs it takes several to see anything."""
    cost = Cost()
    while cost.events < EVENTS_MIN:
        one = run(size)
        cost.seconds += one.seconds
        cost.events += one.events
    return cost


def line(kind: str, us: list[float]) -> str:
    return f"{kind:44}{''.join(f'{cost:>9.1f}' for cost in us)}   {us[-1] / us[0]:>6.2f}   {1e6 / us[-1]:>8.0f}"


if __name__ == "__main__":
    main()
