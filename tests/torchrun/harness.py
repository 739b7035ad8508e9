"""Outcome of a command line of torchrun, as values that can be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowdist.dsl.compile import compile_topology
from flowdist.dsl.problems.problem import Problems, TopologyProblems
from flowdist.graph import RoleGraph, RoleSpec
from flowdist.torchrun.options import read_options
from flowdist.torchrun.output import Streams
from flowdist.torchrun.rendezvous import Rendezvous
from flowdist.torchrun.settle import settle

# For each option that takes a value: one that is not its default.
SAMPLES = {
    "nnodes": "1:4",
    "nproc_per_node": "2",
    "rdzv_backend": "c10d",
    "rdzv_endpoint": "localhost:29500",
    "rdzv_id": "job7",
    "rdzv_conf": "join_timeout=5",
    "max_restarts": "3",
    "monitor_interval": "5",
    "start_method": "fork",
    "event_log_handler": "console",
    "role": "trainer",
    "log_dir": "logs",
    "redirects": "3",
    "tee": "3",
    "log_line_prefix_template": "[${hostname}]:",
    "local_ranks_filter": "0",
    "duplicate_stdout_filters": "apple",
    "duplicate_stderr_filters": "apple",
    "node_rank": "1",
    "master_addr": "127.0.0.1",
    "master_port": "29501",
    "local_addr": "127.0.0.1",
    "logs_specs": "mine",
    "numa_binding": "node",
    "signals_to_handle": "SIGTERM",
    "shutdown_timeout": "5",
}


# Options without which another option has no effect.
BESIDE = {
    "rdzv_endpoint": ["--nnodes", "2"],
    "master_addr": ["--nnodes", "2"],
    "master_port": ["--nnodes", "2", "--node-rank", "0"],
    "node_rank": ["--nnodes", "2"],
    "local_addr": ["--nnodes", "2", "--node-rank", "0"],
}


class Outcome(NamedTuple):
    graph: RoleGraph
    streams: Streams
    run_id: str
    log_dir: str
    rendezvous: Rendezvous | None

    @property
    def role(self) -> RoleSpec:
        return self.graph.roles[0]


class Became(NamedTuple):
    outcome: Outcome | None
    notes: str
    refused: str
    helps: str = ""


def what_becomes_of(
    words: Sequence[str], env: Mapping[str, str] | None = None, gpus: Sequence[str] = (), cpus: int = 2
) -> Became:
    try:
        launch = settle(read_options(words, env or {}), env or {}, gpus, cpus)
    except TopologyProblems as error:
        helps = "\n".join(problem.help for problem in error.problems)
        return Became(None, "", "\n".join(f"{problem.code} {problem.message}" for problem in error.problems), helps)
    graph = compile_topology(launch.topology, Problems())  # the script need not exist here
    return Became(Outcome(graph, *launch[1:4], launch.rendezvous), "\n".join(launch.notes), "")


def outcome_of(*words: str, env: Mapping[str, str] | None = None, gpus: Sequence[str] = (), cpus: int = 2) -> Outcome:
    became = what_becomes_of(words, env, gpus, cpus)
    assert became.outcome is not None, became.refused
    return became.outcome
