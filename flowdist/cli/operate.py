"""Verbs that give an order to the controller of a running job, and print what the controller decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from flowdist.cli.shared.common import paint, print_json, verb
from flowdist.cli.shared.options import gathered, json_option, runs_option
from flowdist.cli.shared.runs import (
    RunOptions,
    complete_node,
    complete_size,
    nodes_of,
    run_option,
    run_options,
    statuses,
)
from flowdist.control.protocol.events import (
    CancelRequested,
    CordonRequested,
    DrainRequested,
    ScaleRequested,
    UncordonRequested,
)
from flowdist.errors import FlowdistError, did_you_mean, node_help
from flowdist.record.status import Decision, Status
from flowdist.runtime.run_folder.runs import known_mask, operate

if TYPE_CHECKING:
    from flowdist.control.job.state import ReplicaPhase
    from flowdist.graph import RoleGraph
    from flowdist.runtime.wire.frames import Operation

POLL_S = 0.2  # interval at which --wait reads the status
DIGITS_MAX = 9  # as in --scale of run: a longer number is not a size, and may not fit the message

run_options_of_order = gathered("named", RunOptions, run_option, runs_option, json_option)
nodes_argument = click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=complete_node)
wait_option = click.option("--wait", "wait", is_flag=True, help="Wait until it is done, not for the decision alone.")


@verb("scale")
@click.argument("sizes", nargs=-1, required=True, metavar="ROLE=N...", shell_complete=complete_size)
@run_options_of_order
@wait_option
def scale(named: RunOptions, sizes: tuple[str, ...], wait: bool) -> None:
    """Set the number of replicas of a role, within its replicas=MIN:MAX.

    \b
    flowdist scale trainer=4
    flowdist scale trainer=4 reader=2 --run word2vec-2026 --wait

    A gang re-forms once in its new size, without a charge to its budget. The decision of the controller is printed;
    exit code 1 if it refuses.
    """
    wanted = dict(_size(text) for text in sizes)

    def is_scaled(status: Status) -> bool:
        roles = {role.name: role for role in status.roles}
        return all(
            name not in roles or roles[name].outcome is not None or _settled_count(roles[name].phases) == count
            for name, count in wanted.items()
        )

    orders = [(ScaleRequested(name, count), name) for name, count in wanted.items()]
    give_orders(named, orders, until=is_scaled if wait else None)


def _settled_count(phases: Mapping[ReplicaPhase, int]) -> int:
    """Return how many replicas run or have succeeded; -1 while any of them starts or stops."""
    if phases.get("starting") or phases.get("stopping"):
        return -1
    return phases.get("running", 0) + phases.get("ready", 0) + phases.get("succeeded", 0)


def _size(text: str) -> tuple[str, int]:
    """Return role and number of `ROLE=N`."""
    role, equals, number = text.partition("=")
    if not equals or not role or not number.isdecimal() or len(number) > DIGITS_MAX:
        raise FlowdistError(f"{text!r} is not a ROLE=N", help="write flowdist scale trainer=4")
    return role, int(number)


@verb("drain")
@nodes_argument
@click.option("--undo", is_flag=True, help="Use the node again, as flowdist uncordon does.")
@run_options_of_order
@wait_option
def drain(named: RunOptions, nodes: tuple[str, ...], undo: bool, wait: bool) -> None:
    """Move all replicas off a node in order, and place no new ones on it.

    \b
    flowdist drain node1 --wait      return when nothing runs on the node any more
    flowdist drain node1 --undo      use the node again

    Workers that call flowdist.worker.should_stop(step) stop at the same step, with a complete checkpoint. The
    controller refuses a drain that would leave a role below its minimum, and prints the missing room; exit code 1.
    """

    def is_empty(status: Status) -> bool:
        return not any(node.replicas for node in status.nodes if node.name in nodes)

    orders = [(UncordonRequested(node) if undo else DrainRequested(node), node) for node in nodes]
    give_orders(named, orders, until=is_empty if wait and not undo else None)


@verb("cordon")
@nodes_argument
@run_options_of_order
def cordon(named: RunOptions, nodes: tuple[str, ...]) -> None:
    """Place no new replicas on a node; replicas that run there keep running.

    A replica of the node that restarts does so elsewhere, if there is room. `flowdist drain` also moves away what runs.
    """
    give_orders(named, [(CordonRequested(node), node) for node in nodes])


@verb("uncordon")
@nodes_argument
@run_options_of_order
def uncordon(named: RunOptions, nodes: tuple[str, ...]) -> None:
    """Use a node again after a cordon or a drain.

    The failures that were counted against the node are forgotten (R22).
    """
    give_orders(named, [(UncordonRequested(node), node) for node in nodes])


@verb("cancel")
@run_options
@click.option("--now", is_flag=True, help="Send SIGKILL at once, without grace.")
@click.option("--reason", default="cancelled by the operator", metavar="TEXT", help="For the journal and the summary.")
@wait_option
def cancel(named: RunOptions, now: bool, reason: str, wait: bool) -> None:
    """End a run: dependents first, each with its full grace.

    \b
    flowdist cancel                        the newest run
    flowdist cancel word2vec-2026 --wait   return when nothing of the run is running any more
    flowdist cancel --now                  kill everything at once

    RUN is the run's name, the beginning of its name, or its folder. A second cancel with --now shortens the first.
    """
    until = (lambda status: False) if wait else None  # until the run is over, and no controller answers
    give_orders(named, [(CancelRequested(reason, now), named.run)], until=until)


def give_orders(
    named: RunOptions, orders: Iterable[tuple[Operation, str]], *, until: Callable[[Status], bool] | None = None
) -> None:
    """Give orders, each with the name that it is about, print decisions, wait for `until`, exit with 1 if refused."""
    run_dir, graph = named.find()
    mask = known_mask(graph, os.environ)
    decisions: list[Decision] = []
    helps: list[str] = []
    for order, name in orders:
        answer = operate(run_dir, order)
        decisions += [msgspec.structs.replace(each, text=mask(each.text)) for each in answer.said]
        if any(each.level == "refused" for each in answer.said):
            helps += _name_help(order, name, graph, run_dir)
    refused = any(each.level == "refused" for each in decisions)
    if named.as_json:
        texts = [msgspec.to_builtins(each) for each in decisions]
        print_json("decision", run=run_dir.name, refused=refused, said=texts)
    else:
        for each in decisions:
            colour = {"refused": "red", "warning": "yellow", "error": "red"}.get(each.level)
            paint(each.text, fg=colour, err=each.level == "refused")
        if not decisions:
            click.echo("nothing changes: the run is in that state already")
        for help in helps:
            click.echo(f"help: {help}", err=True)
    if until is not None and not refused:
        _wait(run_dir, until)
    sys.exit(1 if refused else 0)


def _name_help(order: Operation, name: str, graph: RoleGraph, run_dir: Path) -> list[str]:
    """Return a hint if an order names a role or node that the run does not have and another may be meant; else none."""
    if isinstance(order, ScaleRequested):
        known = [role.name for role in graph.roles]
        return [did_you_mean(name, known)] if name not in known else []
    nodes = nodes_of(run_dir, graph)
    return [node_help(name, nodes)] if nodes and name not in nodes else []


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
