"""`flowdist cordon node1`: place no new replicas on a node."""

from __future__ import annotations

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.runs import RunOptions, give_orders, nodes_argument, run_options_of_order


@verb("cordon")
@nodes_argument
@run_options_of_order
def command(named: RunOptions, nodes: tuple[str, ...]) -> None:
    """Place no new replicas on a node; replicas that run there keep running.

    A replica of the node that restarts does so elsewhere, if there is room. `flowdist drain` also moves away what runs.
    """
    from flowdist.control.protocol.events import CordonRequested  # msgspec: not needed by --help

    give_orders(named, [(CordonRequested(node), node) for node in nodes])
