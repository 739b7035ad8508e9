"""Determinism check: the same seed gives the same bytes under every order of Python's sets.

    python -m tests.proofs.determinism --seeds 200 --hash-seeds 4 --jobs 2

The jobs have 64 nodes. All replicas start at one moment and many faults happen at another. A seed decides the faults,
the start-up times (equal ones for every other seed, so that every order is a tie), and the order of simultaneous
events. Each job is simulated in several processes with different values of PYTHONHASHSEED, which decides the order of
sets, and the digests of the traces are compared. For a seed with different digests, the command prints the first line
in which two traces differ.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import zip_longest
from typing import NamedTuple

from flowdist.dsl import Node, Restart, Topology, Workload
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.faults.streams import draw
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import encode_line
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.testing.kit import graph_of

NODES = 64
UNTIL_NS = 60 * SECOND
CHUNK = 25  # seeds for each process
SCENARIOS = ("ties", "at once", "in recovery")


@cache
def crowd() -> RoleGraph:
    """Return the role graph of the check: 8 servers, a gang of 32 to 96, and 20 evaluators, on 64 nodes in 4 zones."""
    t = Topology("crowd", nodes=[Node(f"node{i}", cpu=4, labels={"zone": "abcd"[i % 4]}) for i in range(NODES)])
    ps = t.role(
        *("ps", "sleep inf"),
        kind="service",
        replicas=8,
        ports=["rpc"],
        ready_when="tcp:rpc",
        restart=Restart("replica", max_restarts=9, within="1h"),
    )
    trainer = t.role(
        *("trainer", "sleep inf"),
        replicas="32:96",
        cpu=2,
        depends_on=[ps.ready(on_restart="restart")],
        restart=Restart("role", max_restarts=9, within="1h"),
        workload=Workload(steps=40, step_time="1s", startup="5s", checkpoint_every="10s", checkpoint_time="1s"),
    )
    t.role(
        *("evaluator", "sleep inf"),
        replicas=20,
        gang=False,
        primary=False,
        depends_on=[trainer.started()],
        restart=Restart("replica", max_restarts=3, then="ignore"),
        workload=Workload(steps=1000),
    )
    return graph_of(t)


def plan_of(scenario: str, seed: int) -> Plan:
    """Return the faults of a scenario that the seed decides.

    `ties` has none, `at once` has all at one moment, and `in recovery` at two moments, with the loss of a zone and of
    the controller between them.
    """
    if scenario == "ties":
        return Plan()
    moments = ("20s",) if scenario == "at once" else ("20s", "20s500ms")
    texts = [fault for moment in moments for fault in _at_once(scenario, seed, moment)]
    if scenario == "in recovery":
        texts += ["zone=a@20s250ms/10s", "controller@20s400ms"]
    return Plan(tuple(parse_fault(text) for text in dict.fromkeys(texts)))


def _at_once(scenario: str, seed: int, moment: str) -> Iterator[str]:
    """Yield twelve faults at that moment, of six nodes and six replicas that the seed decides, as texts."""
    for n in range(6):
        node = int(draw(seed, f"{scenario} {moment}", "node", n) * NODES)
        kind = ("", ":lost", ":preempt=2s")[int(draw(seed, f"{scenario} {moment}", "kind", n) * 3)]
        yield f"node{node}@{moment}{kind}/8s"
        role, many = (("ps", 8), ("trainer", 32), ("evaluator", 20))[n % 3]
        yield f"{role}/{int(draw(seed, f'{scenario} {moment}', role, n) * many)}@{moment}"


def crowded(scenario: str, seed: int) -> SimResult:
    """Simulate the scenario with the seed for 60 s of simulated time.

    Even seeds have equal start-up times, and every fourth seed keeps simultaneous events in the order of planning.
    """
    return Simulation(
        crowd(), plan_of(scenario, seed), seed=seed * (seed % 2), schedule=seed * (seed % 4 != 0), checks="changed"
    ).run(UNTIL_NS)


class Difference(NamedTuple):
    """Seed with different digests, and the first line in which two of its traces differ; empty if not looked for."""

    scenario: str
    seed: int
    digests: tuple[str, ...]  # by hash seed
    line: str


def compare(
    scenarios: Sequence[str], seeds: Sequence[int], hash_seeds: Sequence[int], jobs: int, setup: str = ""
) -> list[Difference]:
    """Run every scenario with every seed and hash seed, in subprocesses, and return the seeds with different digests.

    The first differing line is looked for in the first of these alone.

    Args:
        scenarios: Names out of `SCENARIOS`.
        seeds: The seeds of the simulations, without gaps.
        hash_seeds: The values of PYTHONHASHSEED.
        jobs: The number of processes at a time.
        setup: `module:function` to call first in each process.
    """
    chunks = [(name, list(seeds[i : i + CHUNK])) for name in scenarios for i in range(0, len(seeds), CHUNK)]
    with ThreadPoolExecutor(jobs) as pool:
        found = [
            [pool.submit(_ask, hash_seed, setup, "digests", name, some) for hash_seed in hash_seeds]
            for name, some in chunks
        ]
        different = []
        for (name, some), answers in zip(chunks, found, strict=True):
            digests = [answer.result() for answer in answers]
            for seed, *of_one in zip(some, *digests, strict=True):
                if len(dict.fromkeys(of_one)) > 1:
                    different.append(Difference(name, seed, tuple(of_one), ""))
    return [_with_line(one, hash_seeds, setup) if n == 0 else one for n, one in enumerate(different)]


def _with_line(one: Difference, hash_seeds: Sequence[int], setup: str) -> Difference:
    """Return the difference with its `line`: the first in which the traces under two hash seeds differ.

    Both traces are simulated again, because the first runs return digests alone.
    """
    other = next(n for n, digest in enumerate(one.digests) if digest != one.digests[0])
    traces = [_ask(hash_seeds[n], setup, "lines", one.scenario, [one.seed]) for n in (0, other)]
    n, (a, b) = next(
        (n, pair) for n, pair in enumerate(zip_longest(*traces, fillvalue="(over)"), 1) if len({*pair}) > 1
    )
    return one._replace(line=f"line {n} under hash seed {hash_seeds[0]}: {a}\n    under {hash_seeds[other]}: {b}")


def _ask(hash_seed: int, setup: str, what: str, scenario: str, seeds: list[int]) -> list[str]:
    """Return what `_answer` returns in a new process with this PYTHONHASHSEED; `seeds` have no gaps."""
    command = [sys.executable, "-m", __spec__.name, "--answer", what, "--only", scenario, "--setup", setup]
    done = subprocess.run(
        [*command, "--from", str(seeds[0]), "--seeds", str(len(seeds))],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answer: list[str] = json.loads(done.stdout)
    return answer


def _answer(what: str, scenario: str, seeds: Sequence[int]) -> list[str]:
    """Simulate the scenario with each seed; return one digest for each (`digests`), or all lines (`lines`)."""
    results = [crowded(scenario, seed) for seed in seeds]
    if what == "digests":
        return [result.digest for result in results]
    return [encode_line(line).decode().strip() for result in results for line in result.lines[1:]]


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and print a table; return 0 if all digests of each seed are equal, else 3.

    `words` are those of the command line; None: those of the process. With `--answer`, which is for the subprocesses of
    the command, print the answer as JSON instead.
    """
    wanted = _parser().parse_args(words)
    scenarios = wanted.only or list(SCENARIOS)
    seeds = list(range(wanted.first, wanted.first + wanted.seeds))
    if wanted.setup:
        module, _, name = wanted.setup.partition(":")
        if wanted.answer:
            getattr(importlib.import_module(module), name)()
    if wanted.answer:
        print(json.dumps(_answer(wanted.answer, scenarios[0], seeds)))
        return 0
    hash_seeds = list(range(1, wanted.hash_seeds + 1))
    wrong = 0
    print("| scenario | seeds | hash seeds | runs | different |\n|---|---|---|---|---|")
    began = time.monotonic()
    for scenario in scenarios:
        different = compare([scenario], seeds, hash_seeds, wanted.jobs, wanted.setup)
        print(f"| {scenario} | {len(seeds)} | {len(hash_seeds)} | {len(seeds) * len(hash_seeds)} | {len(different)} |")
        for one in different[:1]:
            print(f"\n{scenario}, seed {one.seed}: {one.line}\n")
        wrong += len(different)
    print(f"\nin {time.monotonic() - began:.0f} s; {'all digests are equal' if not wrong else f'{wrong} seeds differ'}")
    return 3 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.proofs.determinism", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds of each scenario (20)")
    parser.add_argument("--from", type=int, default=1, dest="first", metavar="SEED", help="first seed (1)")
    parser.add_argument("--hash-seeds", type=int, default=4, metavar="N", help="number of values of PYTHONHASHSEED (4)")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="only this scenario; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes at a time (1)")
    parser.add_argument("--setup", default="", metavar="MODULE:FUNCTION", help="call this first in each process")
    parser.add_argument("--answer", choices=("digests", "lines"), help=argparse.SUPPRESS)  # for its subprocesses
    return parser


if __name__ == "__main__":
    sys.exit(main())
