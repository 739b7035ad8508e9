"""Times of the workers for the prediction of a run: where they come from, and why a run cannot be predicted."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import msgspec

from flowdist.cli.shared.workloads import with_workload_file
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph, RoleSpec, WorkloadSpec
from flowdist.sim.forecast import Basis
from flowdist.sim.simulation import with_nodes

BESIDE = "workload.toml"  # a calibration beside the topology
HELP = f"flowdist calibrate RUN -o {BESIDE} measures them in a run"


class Times(NamedTuple):
    """Times for the prediction of a run.

    `file` is the absolute path of a workload.toml; empty: the topology has the times, in `workload=`. `sets` are the
    texts of --set, whose fields win over the file. `why_not` says in one line why nothing can be predicted; empty: it
    can.
    """

    file: str
    sets: tuple[str, ...] = ()
    why_not: str = ""

    @property
    def name(self) -> str:
        """Return where the times come from, in words: a file in the current folder by its name alone."""
        if not self.file:
            return "workload= of the topology"
        path = Path(self.file)
        return path.name if path.parent == Path.cwd() else self.file


def find_times(graph: RoleGraph, file: str | None, sets: tuple[str, ...] = ()) -> Times:
    """Return the times for the prediction of a job.

    Args:
        graph: The job.
        file: The workload.toml that the user has named; None: the one beside the topology, or else `workload=`.
        sets: Texts of --set.

    Raises:
        FlowdistError: The file cannot be read, has problems, or names a role that the job does not have.
    """
    if file is None:
        beside = Path(graph.source).parent / BESIDE
        file = str(beside) if graph.source and beside.is_file() else ""
    measured: Container[str] = ()
    if file:
        graph, calibration = with_workload_file(graph, file, sets)
        measured = calibration.roles
    absolute = str(Path(file).absolute()) if file else ""
    unknown = [role.name for role in graph.roles if role.name not in measured and not _has_times(role)]
    if not unknown:
        return Times(absolute, sets)
    lack = f"no table in {file}" if file else f"no --workload FILE, and no {BESIDE} beside the topology"
    why = f"no times are known of {', '.join(unknown)}: no workload= of its own in the topology, {lack}; {HELP}"
    return Times(absolute, sets, f"nothing is predicted: {why}")


def _has_times(role: RoleSpec) -> bool:
    """Return whether the topology says how the role's workers behave, by a model or a workload that is no default."""
    bare = msgspec.structs.replace(role.workload, collective="", collective_timeout_ns=None)
    return bool(role.simulate) or bare != WorkloadSpec()


def basis_of(graph: RoleGraph, times: Times, plan: Plan) -> Basis:
    """Return the basis of the forecasts of a job.

    Args:
        graph: The job.
        times: Times of its workers, from `find_times`.
        plan: The faults and orders that were announced.

    Raises:
        FlowdistError: The file of the times cannot be used any more.
    """
    if not times.file:
        return Basis(with_nodes(graph), plan)
    graph, calibration = with_workload_file(graph, times.file, times.sets)
    return Basis(with_nodes(graph), plan, calibration.arrival_ns, calibration.unreported)
