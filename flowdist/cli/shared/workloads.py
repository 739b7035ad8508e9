"""`--workload FILE`: a calibration on the command line, and the graph that has its times."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.sim.again import Again
    from flowdist.sim.calibration.calibration import Calibration

OF_STEPS = ("step_time", "scaling", "batch")  # words of a workload that together say how long a step takes

workload_option = click.option(
    "--workload",
    "workload_file",
    type=click.Path(dir_okay=False),
    help="Times of the workers, as flowdist calibrate measured them: workload.toml.",
)


def with_workload_file(graph: RoleGraph, file: str, sets: Iterable[str] = ()) -> tuple[RoleGraph, Calibration]:
    """Return the graph with the times of a workload.toml, and its calibration.

    Args:
        graph: The graph.
        file: The file.
        sets: Texts of --set; a field of a workload that one of them names keeps its value.

    Raises:
        FlowdistError: The file cannot be read, has problems, or names a role that the job does not have.
    """
    from flowdist.sim.calibration.calibration import calibrated  # the simulator: only with --workload
    from flowdist.sim.calibration.file import read_calibration

    found = read_calibration(Path(file))
    names = [role.name for role in graph.roles]
    wrong = [
        f"{file}: the job has no role {name!r}; {did_you_mean(name, names)}"
        for name in found.roles
        if name not in names
    ]
    if wrong:
        raise FlowdistError("\n".join(wrong), help="remove the tables of these roles, or name the topology of the runs")
    return calibrated(graph, found, fields_set(sets)), found


def with_times(job: Again, file: str) -> Again:
    """Return a recorded job with the times of a workload.toml in place of those that were measured in the record.

    Raises:
        FlowdistError: The file cannot be read, has problems, or names a role that the job does not have.
    """
    graph, found = with_workload_file(job.graph, file)
    known = [name for name, times in found.roles.items() if "steps" in times.fields]
    guesses = {name: texts for name, texts in job.recorded.guesses.items() if name not in known}
    endless = tuple(name for name in job.recorded.endless if name not in known)
    return job._replace(graph=graph, recorded=job.recorded._replace(guesses=guesses, endless=endless))


def fields_set(sets: Iterable[str]) -> list[str]:
    """Return the fields of workloads that texts of --set name, as `role.field` of the graph: `trainer.step_ns`."""
    from flowdist.sim.calibration.file import KEYS  # as above

    found = []
    for text in sets:
        role, dot, word = text.partition("=")[0].partition(".workload.")
        if dot and word in OF_STEPS:
            found += [f"{role}.{field}" for field in ("step_ns", "step_times", "batch_workers")]
        elif dot:
            found.append(f"{role}.{KEYS[word].field if word in KEYS else word}")
    return found
