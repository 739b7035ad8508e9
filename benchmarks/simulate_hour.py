"""CPU time of `flowdist simulate`: an hour of eight nodes with six faults, as a whole process, and the engine alone."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from flowdist.dsl.load import load_topology
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import HOUR
from flowdist.sim.simulation import Simulation

TOPOLOGY = str(Path(__file__).parents[1] / "scenarios/topologies/ps.py")
PARAMS = {"nodes": "8", "trainers": "2:8", "max_restarts": "9", "steps": "10000"}
FAULTS = ["node1@9m/2m", "trainer/0@20m", "node2@30m:lost/1m", "ps/0@35m", "node5@40m/5m", "evaluator@50m"]
RUNS = 5

UNFINISHED = 4  # exit code of a simulation that --until stops


def main() -> None:
    command = [sys.executable, "-m", "flowdist", "simulate", TOPOLOGY, "--until", "1h", "--seed", "0"]
    for name, value in PARAMS.items():
        command += ["-p", f"{name}={value}"]
    for fault in FAULTS:
        command += ["--fail", fault]
    whole, digests = [], set()
    for hash_seed in ("0", "1", "2", "3", "random"):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, check=False, capture_output=True, text=True, env={"PYTHONHASHSEED": hash_seed})
        assert done.returncode in (0, UNFINISHED), done.stderr
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        digests.add(done.stdout.split("digest ")[1].split()[0])
    graph = load_topology(TOPOLOGY, PARAMS).graph
    engine = []
    for _ in range(RUNS):
        start = time.process_time()
        simulation = Simulation(graph, Plan(tuple(parse_fault(text) for text in FAULTS)))
        result = simulation.run(HOUR)
        engine.append(time.process_time() - start)
    print(f"8 nodes, 1 hour, {len(FAULTS)} faults, {len(result.job.incidents)} incidents, {result.handled} events")
    print(f"whole process: median {statistics.median(whole):.3f} s of CPU (min {min(whole):.3f}, max {max(whole):.3f})")
    print(
        f"engine alone:  median {statistics.median(engine):.3f} s of CPU, {1 / statistics.median(engine):.0f} a second"
    )
    print(f"digests under {RUNS} hash seeds: {len(digests)} different")


if __name__ == "__main__":
    main()
