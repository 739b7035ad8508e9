"""Failures a second of macro mode: 100,000 GPUs over years, beside a plain SimPy model of the same job.

The SimPy model has what a small script of the field has: nodes that fail and come back, spares, start-up, checkpoints,
lost work. It has no policy, no limits, no placement and no buckets but its own three.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from flowdist.dsl.load import load_topology
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import SECOND, RestartPolicy
from flowdist.graph.units import DAY
from flowdist.sim.macro.books import MacroResult
from flowdist.sim.macro.macro import Macro
from flowdist.sim.macro.scope import Scope, scope_of

TOPOLOGY = str(Path(__file__).parents[1] / "scenarios/topologies/hundred_thousand.py")
RATE, PER_NODE_DAY, BACK_S = "node-kill=6.5e-3/node-day/4h", 6.5e-3, 4 * 3600
FALLS = "trainer-kill=6.5e-3/replica-day"
WAITS = "node-kill=6.5e-3/node-day/5m"
NODES, SPARES, DAYS = 12_500, 100, 200
START_S, RESTORE_S, EVERY_S, SAVE_S = 180.0, 60.0, 600.0, 20.0
RUNS = 5


class Case(NamedTuple):
    """One job to measure: `rate` in the grammar of `--rate`, `params` of the topology."""

    title: str
    seed: int = 0
    rate: str = RATE
    params: Mapping[str, int] = MappingProxyType({})


CASES = (
    Case("macro, spares, nominal"),
    Case("macro, spares, spread", 1),
    Case("macro, no spares, elastic", params={"spares": 0}),
    Case("macro, no spares, elastic, spread", 1, params={"spares": 0}),
    Case("macro, no spares, waits 5m", rate=WAITS, params={"spares": 0, "least": NODES}),
    Case("macro, replicas fall over", rate=FALLS),
)


def prepared(case: Case) -> tuple[Scope, Plan]:
    """Return the job of the case, with so large a budget that nothing but its rates ends it."""
    arguments = {name: str(value) for name, value in {"days": 10 * DAYS, **case.params}.items()}
    graph = load_topology(TOPOLOGY, arguments, (), None).graph
    policy = RestartPolicy(max_restarts=10**6)
    roles = [msgspec.structs.replace(role, pending_timeout_ns=DAY, restart=policy) for role in graph.roles]
    graph = msgspec.structs.replace(graph, roles=tuple(roles))
    plan = parse_plan(rates=[case.rate])
    return scope_of(graph, plan), plan


def timed(scope: Scope, plan: Plan, seed: int) -> tuple[float, MacroResult]:
    """Run the job once, and return its failures a second of CPU and its result."""
    job = Macro(scope, plan, seed=seed)
    start = time.process_time()
    result = job.run(DAYS * DAY)
    return result.faults / (time.process_time() - start), result


def show(case: Case) -> None:
    scope, plan = prepared(case)
    runs = [timed(scope, plan, case.seed) for _ in range(RUNS)]
    rates, result = [rate for rate, _ in runs], runs[0][1]
    failed = f", {result.outcome}: {result.reason}" if result.outcome else ""
    figures = f"{result.faults} failures, goodput {100 * (result.goodput or 0.0):.2f} %{failed}"
    print(f"{case.title:33} {max(rates):9,.0f} failures/s (worst of {RUNS}: {min(rates):,.0f}); {figures}")


class SimPyJob:
    """The same job as a plain script models it: nodes, spares, start-up and checkpoints."""

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
    for case in CASES:
        show(case)
    beside_simpy()
    print(f"(a checkpoint of {SAVE_S:g} s every {EVERY_S:g} s, start-up {START_S:g} s, {SECOND} ns a second)")


if __name__ == "__main__":
    main()
