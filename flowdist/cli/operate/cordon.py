"""`flowdist cordon node1`: place no new replicas on a node."""

from __future__ import annotations

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.runs import RunOptions, give_orders, nodes_argument, run_options_of_order


@click.command(name="cordon")
@nodes_argument
@run_options_of_order
@guarded
def command(named: RunOptions, nodes: tuple[str, ...]) -> None:
    """Place no new replicas on a node; replicas that run there keep running.

    A replica of the node that restarts does so elsewhere, if there is room. `flowdist drain` also moves away what runs.
    """
    from flowdist.control.protocol.events import CordonRequested  # msgspec: not needed by --help

    give_orders(named, [(CordonRequested(node), node) for node in nodes])
