"""`--workload FILE`: measured times on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.errors import FlowdistError, did_you_mean

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.sim.calibration.calibration import Calibration

OF_STEPS = ("step_time", "scaling", "batch")  # words of a workload that together say how long a step takes

workload_option = click.option(
    "--workload",
    "workload_file",
    type=click.Path(dir_okay=False),
    help="Times of the workers, as flowdist calibrate measured them: workload.toml.",
)


def times_of(file: str, graph: RoleGraph) -> Calibration:
    """Return the times of a workload.toml for the roles of a graph.

    Raises:
        FlowdistError: The file cannot be read, has problems, or names a role that the job does not have.
    """
    from flowdist.sim.calibration.file import read_calibration  # the simulator: only with --workload

    found = read_calibration(Path(file))
    names = [role.name for role in graph.roles]
    wrong = [
        f"{file}: the job has no role {name!r}; {did_you_mean(name, names)}"
        for name in found.roles
        if name not in names
    ]
    if wrong:
        raise FlowdistError("\n".join(wrong), help="remove the tables of these roles, or name the topology of the runs")
    return found


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
