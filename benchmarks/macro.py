"""Failures a second of macro mode: 100,000 GPUs over years, beside a plain SimPy model of the same job.

The SimPy model has what a small script of the field has: nodes that fail and come back, spares, start-up, checkpoints,
lost work. It has no policy, no limits, no placement and no buckets but its own three.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.graph import DAY, SECOND, RestartPolicy
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import scope_of

TOPOLOGY = str(Path(__file__).parents[1] / "scenarios/topologies/hundred_thousand.py")
RATE, PER_NODE_DAY, BACK_S = "node-kill=6.5e-3/node-day/4h", 6.5e-3, 4 * 3600
FALLS = "trainer-kill=6.5e-3/replica-day"
WAITS = "node-kill=6.5e-3/node-day/5m"
NODES, SPARES, DAYS = 12_500, 100, 200
START_S, RESTORE_S, EVERY_S, SAVE_S = 180.0, 60.0, 600.0, 20.0
RUNS = 5


def macro(title: str, seed: int, rate: str = RATE, **params: int) -> None:
    arguments = {name: str(value) for name, value in {"days": 10 * DAYS, **params}.items()}
    graph = load_topology(TOPOLOGY, arguments, (), None).graph
    policy = RestartPolicy(max_restarts=10**6)
    roles = [msgspec.structs.replace(role, pending_timeout_ns=DAY, restart=policy) for role in graph.roles]
    graph = msgspec.structs.replace(graph, roles=tuple(roles))
    plan = parse_plan(rates=[rate])
    scope = scope_of(graph, plan)
    rates = []
    for _ in range(RUNS):
        job = Macro(scope, plan, seed=seed)
        start = time.process_time()
        result = job.run(DAYS * DAY)
        rates.append(result.faults / (time.process_time() - start))
    failed = f", {result.outcome}: {result.reason}" if result.outcome else ""
    figures = f"{result.faults} failures, goodput {100 * result.goodput:.2f} %{failed}"
    print(f"{title:33} {max(rates):9,.0f} failures/s (worst of {RUNS}: {min(rates):,.0f}); {figures}")


class SimPyJob:
    """As a script would have it."""

    def __init__(self, simpy: Any, seed: int) -> None:
        self.simpy, self.env, self.rnd = simpy, simpy.Environment(), random.Random(seed)
        self.productive = self.durable = 0.0
        self.failures = 0
        self.members = [True] * NODES + [False] * SPARES
        self.spares = list(range(NODES, NODES + SPARES))
        self.job = self.env.process(self.work())
        for node in range(NODES + SPARES):
            self.env.process(self.node(node))

    def node(self, node: int) -> Any:
        while True:
            yield self.env.timeout(self.rnd.expovariate(PER_NODE_DAY / 86_400))
            self.failures += 1
            if self.members[node]:
                self.members[node] = False
                self.members[self.spares.pop()] = True
                self.job.interrupt()
            else:
                self.spares.remove(node)
            yield self.env.timeout(BACK_S)
            self.spares.append(node)

    def work(self) -> Any:
        while True:
            try:
                yield self.env.timeout(START_S + (RESTORE_S if self.durable else 0))
                while True:
                    yield self.env.timeout(EVERY_S + SAVE_S)
                    self.durable += EVERY_S
            except self.simpy.Interrupt:
                continue


def beside_simpy() -> None:
    try:
        import simpy
    except ImportError:
        print("SimPy is not installed: python -m pip install simpy, to see it beside")
        return
    rates = []
    for _ in range(RUNS):
        job = SimPyJob(simpy, 1)
        start = time.process_time()
        job.env.run(until=DAYS * 86_400)
        rates.append(job.failures / (time.process_time() - start))
    figures = f"{job.failures} failures, goodput {100 * job.durable / (DAYS * 86_400):.2f} %"
    title = f"SimPy {simpy.__version__}"
    print(f"{title:33} {max(rates):9,.0f} failures/s (worst of {RUNS}: {min(rates):,.0f}); {figures}")


def main() -> None:
    print(f"{NODES} nodes of 8 GPUs, {RATE}, {DAYS} days; CPU time of one core, Python {sys.version.split()[0]}")
    macro("macro, spares, nominal", 0)
    macro("macro, spares, spread", 1)
    macro("macro, no spares, elastic", 0, spares=0)
    macro("macro, no spares, elastic, spread", 1, spares=0)
    macro("macro, no spares, waits 5m", 0, WAITS, spares=0, least=NODES)
    macro("macro, replicas fall over", 0, FALLS)
    macro("macro, 200 readers, 4 evaluators", 0, readers=200, evaluators=4)
    beside_simpy()
    print(f"(a checkpoint of {SAVE_S:g} s every {EVERY_S:g} s, start-up {START_S:g} s, {SECOND} ns a second)")


if __name__ == "__main__":
    main()
