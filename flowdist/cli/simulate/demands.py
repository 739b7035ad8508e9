"""What the command line demands of simulated runs: a file of properties, bounds on what failures cost, and liveness."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from flowdist.cli.shared.common import Named
    from flowdist.sim.checks.bounds import Bounds
    from flowdist.sim.checks.properties import Properties

F = Callable[..., Any]


class Demands(NamedTuple):
    """As they were written."""

    file: str | None
    recovers_within: str | None
    lost_work: str | None
    goodput: float | None
    live: bool

    @property
    def any(self) -> bool:
        return self != Demands(None, None, None, None, live=False)

    @property
    def bounds(self) -> Bounds:
        """FlowdistError for one that cannot be read."""
        from flowdist.sim.checks.bounds import bounds_of  # the engine: only when something is simulated

        return bounds_of(self.recovers_within, self.lost_work, self.goodput)

    def properties(self, named: Named) -> Properties:
        """Of the file that is named, or of the one that stands beside the topology."""
        from flowdist.dsl.load import DEFAULT_FILE
        from flowdist.sim.checks.properties import Properties
        from flowdist.testing.declare import load_properties, side_file

        if self.file is not None:
            return load_properties(Path(self.file))
        beside = side_file(named.target or DEFAULT_FILE)
        return load_properties(beside) if beside is not None else Properties()

    def words(self) -> list[str]:
        """On a command line, to see a failure again."""
        given = {
            "--properties": self.file,
            "--recovers-within": self.recovers_within,
            "--lost-work": self.lost_work,
            "--goodput": self.goodput,
        }
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


def demand_options(function: F) -> F:
    """--properties, --recovers-within, --lost-work, --goodput and --live, given to the verb as one `demands`."""

    @functools.wraps(function)
    def wrapper(
        file: str | None,
        recovers_within: str | None,
        lost_work: str | None,
        goodput: float | None,
        live: bool,
        **others: Any,
    ) -> Any:
        return function(demands=Demands(file, recovers_within, lost_work, goodput, live), **others)

    decorated: Any = wrapper
    for decorate in reversed(
        (
            click.option(
                "--properties", "file", metavar="FILE", help="Properties to check; else x_properties.py beside x.py."
            ),
            click.option("--recovers-within", metavar="TIME", help="After each incident it steps again in that time."),
            click.option("--lost-work", metavar="TIME", help="More work of a world is never lost."),
            click.option("--goodput", type=float, metavar="SHARE", help="Of the time of tasks so much is productive."),
            click.option("--live", is_flag=True, help="After the last fault it gets on within a bound; see docs."),
        )
    ):
        decorated = decorate(decorated)
    return decorated  # type: ignore[no-any-return]
