"""How fast the simulator is, how much it keeps in mind, and SimPy 4 beside it in the same run.

    python benchmarks/simulator.py [events] [seeds] [memory] [days]

Everything is CPU time of one process, the best of a few turns, taken turn by turn with the peer. A new part is a
function in PARTS.
"""

from __future__ import annotations

import argparse
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flowdist.control.protocol.events import ReplicaProgressed
from flowdist.control.protocol.ids import ReplicaId
from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import HOUR, RoleGraph
from flowdist.record.journal import Header, record
from flowdist.sim.engine.context import Trace
from flowdist.sim.engine.queue import Queue
from flowdist.sim.faults.nemesis import FAULTS_MAX, Nemesis
from flowdist.sim.simulation import Simulation
from flowdist.testing.campaign import Rules, campaign, horizon, judge
from flowdist.testing.kit import graph_of

PROCESSES = 1_000
EVENTS = 300_000
KEPT = 1_000_000
TURNS = 5
MEAN_NS = 1_000_000_000
DAY = 24 * HOUR
SCENARIOS = Path(__file__).parents[1] / "scenarios/topologies"


def best(turns: int, *runs: Callable[[], object]) -> list[float]:
    """Seconds of CPU of each, turn by turn, so that all see the same load of the machine."""
    took = [float("inf")] * len(runs)
    for _ in range(turns):
        for n, run in enumerate(runs):
            start = time.process_time()
            run()
            took[n] = min(took[n], time.process_time() - start)
    return took


def _delays() -> list[int]:
    drawn = random.Random(1)
    return [int(drawn.expovariate(1) * MEAN_NS) + 1 for _ in range(EVENTS + PROCESSES)]


def _ours(delays: Iterator[int], trace: Trace | None) -> None:
    """Each process sleeps, is woken, is written down, and sleeps again."""
    queue, names = Queue(), [ReplicaId("trainer", n) for n in range(PROCESSES)]

    def wake(name: ReplicaId) -> None:
        if trace is not None:
            trace.append(record(queue.handled, queue.now, ReplicaProgressed(name, 1, queue.handled), ()))
        if queue.handled >= EVENTS:
            queue.stop()
        queue.after(next(delays), wake, name)

    for name in names:
        queue.at(next(delays), wake, name)
    queue.run()
    if trace is not None:
        trace.digest()


def _simpy(delays: Iterator[int], trace: Trace | None) -> None:
    import simpy  # the peer: a tool of this benchmark alone

    env = simpy.Environment()
    done = env.event()
    handled = 0

    def process(name: ReplicaId) -> Any:
        nonlocal handled
        while True:
            yield env.timeout(next(delays))
            handled += 1
            if trace is not None:
                trace.append(record(handled, env.now, ReplicaProgressed(name, 1, handled), ()))
            if handled == EVENTS:
                done.succeed()

    for n in range(PROCESSES):
        env.process(process(ReplicaId("trainer", n)))
    env.run(done)
    if trace is not None:
        trace.digest()


def _trace() -> Trace:
    return Trace(Header(load_topology(str(SCENARIOS / "gang.py"), {}).graph, ()))


def events() -> None:
    print(f"## Bare events: {PROCESSES:,} processes, {EVENTS:,} events\n")
    print("| | events a second | against SimPy |\n|---|---|---|")
    _compare("alone", _delays(), lambda: None)
    _compare("every event recorded, with its digest", _delays(), _trace)


def _compare(words: str, delays: list[int], trace: Callable[[], Trace | None]) -> None:
    ours, theirs = best(TURNS, lambda: _ours(iter(delays), trace()), lambda: _simpy(iter(delays), trace()))
    print(f"| flowdist, {words} | {EVENTS / ours:,.0f} | {theirs / ours:.2f} |")
    print(f"| SimPy, {words} | {EVENTS / theirs:,.0f} | 1 |")


def eight_nodes() -> RoleGraph:
    params = {"nodes": "8", "trainers": "2:8", "max_restarts": "9", "steps": "3600"}
    return load_topology(str(SCENARIOS / "ps.py"), params).graph


def one_gang() -> RoleGraph:
    t = Topology("gang", nodes=[Node(f"node{i}", cpu=1) for i in range(8)])
    load = Workload(steps=3600, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s")
    t.role("trainer", "sleep inf", replicas="2:8", restart=Restart("role", max_restarts=9), workload=load)
    return graph_of(t)


def seeds() -> None:
    """Whole seeds, as `flowdist simulate --seeds` tries them: draw the plan, run, check, judge."""
    graphs = {"two servers, eight trainers, an evaluator": eight_nodes(), "one gang of eight": one_gang()}
    print(f"\n## Seeds: 8 nodes, an hour, {FAULTS_MAX} faults each\n")
    print("| | seeds a second and core | every step played, everything checked after every event |\n|---|---|---|")
    for words, graph in graphs.items():
        quick, full = _seeds(graph)
        print(f"| {words} | {1 / quick:.0f} | {1 / full:.0f} |")


def _seeds(graph: RoleGraph) -> tuple[float, float]:
    """Seconds of CPU that a seed takes as a campaign tries it, and when all of it is played."""
    usual = horizon(graph)
    nemesis = Nemesis(graph, usual)
    chosen = [seed for seed in range(1, 1000) if len(nemesis.plan(seed).faults) == FAULTS_MAX][:40]
    reports = []
    quick, full = best(
        TURNS,
        lambda: reports.append(campaign(graph, chosen)),
        lambda: [judge(graph, nemesis.plan(seed), seed, Rules(usual)) for seed in chosen[:5]],
    )
    assert not any(report.failures for report in reports)
    return quick / len(chosen), full / 5


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory() -> None:
    trace, before = _trace(), _resident_bytes()
    tracemalloc.start()
    for n in range(1, KEPT + 1):
        trace.append(record(n, n * 1_000_003, ReplicaProgressed(ReplicaId("trainer", n % 64), 1, n // 64), ()))
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\n## Memory: {KEPT:,} events kept\n")
    grown = _resident_bytes() - before
    print(f"{allocated / KEPT:.0f} bytes an event allocated; the process grew by {grown / KEPT:.0f}")


def four_days() -> RoleGraph:
    t = Topology("days", nodes=[Node(f"node{i}", cpu=2) for i in range(64)])
    load = Workload(steps=340_000, step_time="1s", startup="1m", checkpoint_every="10m", checkpoint_time="10s")
    t.role("trainer", "sleep inf", replicas="32:64", cpu=2, restart=Restart("role", max_restarts=99), workload=load)
    return graph_of(t)


def days() -> None:
    graph, faults = four_days(), [f"node{n}@{n}h/10m" for n in range(1, 60)]
    plan = Plan(tuple(parse_fault(text) for text in faults))
    results: dict[bool, Any] = {}

    def run(computed: bool) -> None:
        results[computed] = Simulation(graph, plan, fast_forward=computed, checks="changed").run(5 * DAY)

    played, computed = best(1, lambda: run(False), lambda: run(True))
    lasted = results[False].now
    assert lasted == results[True].now and len(results[False].job.incidents) == len(results[True].job.incidents)
    print(f"\n## Days: 64 trainers, {lasted / DAY:.1f} days, {len(faults)} nodes die and return\n")
    print("| | seconds of CPU | events in the trace |\n|---|---|---|")
    print(f"| every checkpoint played | {played:.2f} | {len(results[False].lines):,} |")
    print(f"| quiet stretches computed | {computed:.2f} | {len(results[True].lines):,} |")


PARTS: dict[str, Callable[[], None]] = {"events": events, "seeds": seeds, "memory": memory, "days": days}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"Some of: {', '.join(PARTS)} (default: all).")
    wanted = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}: {', '.join(PARTS)}")
    for name in wanted:
        PARTS[name]()


if __name__ == "__main__":
    main()
