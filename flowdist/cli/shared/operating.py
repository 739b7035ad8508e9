"""What the verbs about a run share: how it is named on the command line, and how orders are given and answered."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowdist.cli.shared.common import print_json
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph

if TYPE_CHECKING:
    from flowdist.record.status import Status
    from flowdist.runtime.wire.frames import Operation

F = TypeVar("F", bound=Callable[..., Any])
LOOK_S = 0.2  # how often --wait looks

runs_option = click.option(
    "--runs", "base", default="runs", metavar="DIR", help="Where the folders of runs are (default: runs)."
)
run_argument = click.argument("run", default="latest")
run_option = click.option(
    "--run", default="latest", metavar="RUN", help="Its name, the beginning of it, or its folder."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
wait_option = click.option("--wait", "wait", is_flag=True, help="Until it is so; the answer alone comes at once.")


def ask(
    run_dir: Path,
    graph: RoleGraph,
    orders: Iterable[tuple[Operation, str]],
    *,
    as_json: bool,
    until: Callable[[Status], bool] | None = None,
) -> None:
    """Give orders to the controller of a run, and show in its words what it has decided. Ends with 1 when it refuses.

    Args:
        orders: Each with the name that it is about, to be helped with where there is no such thing.
        until: With this they are waited for: it says whether all is as it was ordered.
    """
    from flowdist.record.status import Decision  # msgspec and the runtime: not for --help
    from flowdist.runtime.run_folder.runs import known_mask, operate

    mask = known_mask(graph, os.environ)
    said: list[Decision] = []
    helps: list[str] = []
    for order, name in orders:
        answer = operate(run_dir, order)
        said += [Decision(each.t_ns, mask(each.text), each.level) for each in answer.said]
        if any(each.level == "refused" for each in answer.said):
            helps += _did_you_mean(order, name, graph)
    refused = any(each.level == "refused" for each in said)
    if as_json:
        texts = [{"text": each.text, "level": each.level} for each in said]
        print_json("decision", run=run_dir.name, refused=refused, said=texts)
    else:
        _show([(each.text, each.level) for each in said], helps)
    if until is not None and not refused:
        _wait(run_dir, until)
    sys.exit(1 if refused else 0)


def _show(said: Sequence[tuple[str, str]], helps: Iterable[str]) -> None:
    for text, level in said:
        colour = {"refused": "red", "warning": "yellow", "error": "red"}.get(level)
        click.secho(text, fg=colour, err=level == "refused")
    if not said:
        click.echo("nothing changes: it is so already")
    for help in helps:
        click.echo(f"help: {help}", err=True)


def _did_you_mean(order: Operation, name: str, graph: RoleGraph) -> list[str]:
    from flowdist.control.protocol.events import ScaleRequested  # as in ask

    known = [spec.name for spec in (graph.roles if isinstance(order, ScaleRequested) else graph.cluster.nodes)]
    close = difflib.get_close_matches(name, known, n=1)
    return [f"did you mean {close[0]!r}?"] if name not in known and close else []


def _wait(run_dir: Path, until: Callable[[Status], bool]) -> None:
    """Returns when it is so, or the run is over; says what it waits for, each time that it is something else."""
    from flowdist.runtime.run_folder.runs import describe, state_of

    last = ""
    while True:
        try:
            status = describe(run_dir)
        except FlowdistError:
            if state_of(run_dir).state == "running":
                raise
            click.echo("the run is over", err=True)
            return
        if until(status):
            click.echo("done", err=True)
            return
        if status.held_up_by and status.held_up_by[0] != last:
            last = status.held_up_by[0]
            click.echo(f"waits for {last}", err=True)
        time.sleep(LOOK_S)
