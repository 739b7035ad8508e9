"""Runs on the command line, and their statuses while they last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.shared.completion import complete_run
from flowdist.cli.shared.options import gathered, json_option, runs_option
from flowdist.errors import FlowdistError
from flowdist.runtime.run_folder.folder import find_run
from flowdist.runtime.run_folder.runs import describe, state_of

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.record.status import Status


run_argument = click.argument("run", default="latest", shell_complete=complete_run)
run_option = click.option(
    "--run",
    default="latest",
    metavar="RUN",
    help="Its name, the beginning of it, or its folder.",
    shell_complete=complete_run,
)


class RunOptions(NamedTuple):
    """Run on the command line, the folder of all runs, and whether the output is JSON."""

    run: str
    base: str
    as_json: bool = False

    def find(self) -> tuple[Path, RoleGraph]:
        """Return the folder of the run, and the role graph of its job.

        Raises:
            FlowdistError: There is no such run.
        """
        return find_run(Path(self.base), self.run)


run_options = gathered("named", RunOptions, run_argument, runs_option, json_option)


def statuses(run_dir: Path, every_s: float) -> Iterator[Status]:
    """Yield the status of a run's job, asked from its controller every `every_s` seconds, until the run is over.

    Raises:
        FlowdistError: The run lasts, and its controller has not answered in time.
    """
    while True:
        try:
            yield describe(run_dir)
        except FlowdistError:
            if state_of(run_dir).state == "running":
                raise
            return
        time.sleep(every_s)
