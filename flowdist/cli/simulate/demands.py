"""Demands on simulated runs: a file of properties, bounds on the cost of failures, and liveness."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from flowdist.cli.shared.options import TopologyOptions, gathered
from flowdist.dsl.load import DEFAULT_FILE
from flowdist.sim.checks.bounds import Bounds, bounds_of
from flowdist.sim.checks.properties import Properties
from flowdist.testing.declare import load_properties, side_file
from flowdist.testing.repro_command import bound_words


class Demands(NamedTuple):
    """Demands on simulated runs, as the command line states them; None for one that is not given."""

    file: str | None
    recovers_within: str | None
    lost_work: str | None
    goodput: float | None
    live: bool

    @property
    def any(self) -> bool:
        """Return whether the command line states at least one demand on the simulated runs."""
        return self != Demands(None, None, None, None, live=False)

    @property
    def bounds(self) -> Bounds:
        """Return the bounds on recovery time, lost work and goodput.

        Raises:
            FlowdistError: One of them cannot be read.
        """
        return bounds_of(self.recovers_within, self.lost_work, self.goodput)

    def properties(self, named: TopologyOptions) -> Properties:
        """Load the properties of the given file, or of the file beside the topology; without either there are none.

        `named` is the topology of the command line.
        """
        if self.file is not None:
            return load_properties(Path(self.file))
        beside = side_file(named.target or DEFAULT_FILE)
        return load_properties(beside) if beside is not None else Properties()

    def words(self) -> list[str]:
        """Return the file of properties and the bounds as words of a command line that shows a failure again."""
        file = ["--properties", self.file] if self.file is not None else []
        return [*file, *bound_words(self.recovers_within, self.lost_work, self.goodput)]


demand_options = gathered(
    "demands",
    Demands,
    click.option(
        "--properties", "file", metavar="FILE", help="Check these properties (default: x_properties.py beside x.py)."
    ),
    click.option("--recovers-within", metavar="TIME", help="Fail if an incident needs longer until steps go on."),
    click.option("--lost-work", metavar="TIME", help="Fail if a world loses more work than this."),
    click.option("--goodput", type=float, metavar="SHARE", help="Fail if less of the tasks' time is productive: 0.9."),
    click.option("--live", is_flag=True, help="Fail if the job makes no progress within a bound after the last fault."),
)
