"""`flowdist drain node1`: a node is left in order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import ask, json_option, run_option, runs_option, wait_option

if TYPE_CHECKING:
    from flowdist.record.status import Status


@click.command(name="drain")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--undo", is_flag=True, help="Use it again: the same as flowdist uncordon.")
@run_option
@runs_option
@wait_option
@json_option
@guarded
def command(nodes: tuple[str, ...], undo: bool, run: str, base: str, wait: bool, as_json: bool) -> None:
    """Have a node left in order: what runs there moves away, and nothing new is placed on it.

    \b
    flowdist drain node1 --wait      returns when nothing runs on it any more
    flowdist drain node1 --undo      it is used again

    Workers that ask flowdist.worker.should_stop(step) leave at one step, with a checkpoint that is whole. A drain that
    would leave a role below its minimum is refused, with the room that it would lack; exit code 1.
    """
    from flowdist.control.protocol.events import DrainRequested, UncordonRequested  # msgspec: not for --help
    from flowdist.runtime.run_folder.folder import find_run

    run_dir, graph = find_run(Path(base), run)

    def is_so(status: Status) -> bool:
        return not any(node.replicas for node in status.nodes if node.name in nodes)

    orders = [(UncordonRequested(node) if undo else DrainRequested(node), node) for node in nodes]
    ask(run_dir, graph, orders, as_json=as_json, until=is_so if wait and not undo else None)
