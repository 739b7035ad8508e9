"""`flowdist drain node1`: move all work off a node, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.runs import RunOptions, give_orders, nodes_argument, run_options_of_order, wait_option

if TYPE_CHECKING:
    from flowdist.record.status import Status


@verb("drain")
@nodes_argument
@click.option("--undo", is_flag=True, help="Use the node again, as flowdist uncordon does.")
@run_options_of_order
@wait_option
def command(named: RunOptions, nodes: tuple[str, ...], undo: bool, wait: bool) -> None:
    """Move all replicas off a node in order, and place no new ones on it.

    \b
    flowdist drain node1 --wait      return when nothing runs on the node any more
    flowdist drain node1 --undo      use the node again

    Workers that call flowdist.worker.should_stop(step) stop at the same step, with a complete checkpoint. The
    controller refuses a drain that would leave a role below its minimum, and prints the missing room; exit code 1.
    """
    from flowdist.control.protocol.events import DrainRequested, UncordonRequested  # msgspec: not needed by --help

    def is_empty(status: Status) -> bool:
        return not any(node.replicas for node in status.nodes if node.name in nodes)

    orders = [(UncordonRequested(node) if undo else DrainRequested(node), node) for node in nodes]
    give_orders(named, orders, until=is_empty if wait and not undo else None)
