"""Runs on the command line, and orders to their controllers."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from flowdist.cli.shared.common import print_json
from flowdist.cli.shared.options import gathered, json_option, runs_option
from flowdist.errors import FlowdistError

if TYPE_CHECKING:
    from flowdist.graph import RoleGraph
    from flowdist.record.status import Decision, Status
    from flowdist.runtime.wire.frames import Operation

POLL_S = 0.2  # interval at which --wait reads the status

run_argument = click.argument("run", default="latest")
run_option = click.option(
    "--run", default="latest", metavar="RUN", help="Its name, the beginning of it, or its folder."
)
wait_option = click.option("--wait", "wait", is_flag=True, help="Wait until it is done, not for the decision alone.")


class RunOptions(NamedTuple):
    """A run on the command line, and the form of the output."""

    run: str
    base: str
    as_json: bool = False

    def find(self) -> tuple[Path, RoleGraph]:
        """Return the folder and the graph of the run.

        Raises:
            FlowdistError: There is no such run.
        """
        from flowdist.runtime.run_folder.folder import find_run  # msgspec and the runtime: not needed by --help

        return find_run(Path(self.base), self.run)


run_options = gathered("named", RunOptions, run_argument, runs_option, json_option)
run_options_of_order = gathered("named", RunOptions, run_option, runs_option, json_option)
nodes_argument = click.argument("nodes", nargs=-1, required=True, metavar="NODE...")


def give_orders(
    named: RunOptions, orders: Iterable[tuple[Operation, str]], *, until: Callable[[Status], bool] | None = None
) -> None:
    """Give orders to the controller of a run, print its decisions, and exit with 0, or with 1 if it refuses one.

    Args:
        orders: Orders, each with the role, node or run that it names.
        until: Condition to wait for afterwards; None: do not wait.
    """
    from flowdist.record.status import Decision  # as in `RunOptions.find`
    from flowdist.runtime.run_folder.runs import known_mask, operate

    run_dir, graph = named.find()
    mask = known_mask(graph, os.environ)
    decisions: list[Decision] = []
    helps: list[str] = []
    for order, name in orders:
        answer = operate(run_dir, order)
        decisions += [Decision(each.t_ns, mask(each.text), each.level) for each in answer.said]
        if any(each.level == "refused" for each in answer.said):
            helps += _did_you_mean(order, name, graph)
    refused = any(each.level == "refused" for each in decisions)
    if named.as_json:
        texts = [{"text": each.text, "level": each.level} for each in decisions]
        print_json("decision", run=run_dir.name, refused=refused, said=texts)
    else:
        _show(decisions, helps)
    if until is not None and not refused:
        _wait(run_dir, until)
    sys.exit(1 if refused else 0)


def _show(decisions: Sequence[Decision], helps: Iterable[str]) -> None:
    for each in decisions:
        colour = {"refused": "red", "warning": "yellow", "error": "red"}.get(each.level)
        click.secho(each.text, fg=colour, err=each.level == "refused")
    if not decisions:
        click.echo("nothing changes: the run is in that state already")
    for help in helps:
        click.echo(f"help: {help}", err=True)


def _did_you_mean(order: Operation, name: str, graph: RoleGraph) -> list[str]:
    from flowdist.control.protocol.events import ScaleRequested  # as in `RunOptions.find`

    known = [spec.name for spec in (graph.roles if isinstance(order, ScaleRequested) else graph.cluster.nodes)]
    close = difflib.get_close_matches(name, known, n=1)
    return [f"did you mean {close[0]!r}?"] if name not in known and close else []


def _wait(run_dir: Path, until: Callable[[Status], bool]) -> None:
    """Wait until the condition holds or the run is over, and print what the job waits for whenever that changes."""
    last = ""
    for status in statuses(run_dir, POLL_S):
        if until(status):
            click.echo("done", err=True)
            return
        if status.held_up_by and status.held_up_by[0] != last:
            last = status.held_up_by[0]
            click.echo(f"waits for {last}", err=True)
    click.echo("the run is over", err=True)


def statuses(run_dir: Path, every_s: float) -> Iterator[Status]:
    """Yield the status again and again while the run goes on.

    Raises:
        FlowdistError: The controller has not answered in time.
    """
    from flowdist.runtime.run_folder.runs import describe, state_of

    while True:
        try:
            yield describe(run_dir)
        except FlowdistError:
            if state_of(run_dir).state == "running":
                raise
            return
        time.sleep(every_s)
