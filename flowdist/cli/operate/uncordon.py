"""`flowdist uncordon node1`: use a node again."""

from __future__ import annotations

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.runs import RunOptions, give_orders, nodes_argument, run_options_of_order


@verb("uncordon")
@nodes_argument
@run_options_of_order
def command(named: RunOptions, nodes: tuple[str, ...]) -> None:
    """Use a node again after a cordon or a drain.

    The failures that were counted against the node are forgotten (R22).
    """
    from flowdist.control.protocol.events import UncordonRequested  # msgspec: not needed by --help

    give_orders(named, [(UncordonRequested(node), node) for node in nodes])
