"""`flowdist cordon node1`: nothing new on a node."""

from __future__ import annotations

from pathlib import Path

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import ask, json_option, run_option, runs_option


@click.command(name="cordon")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@run_option
@runs_option
@json_option
@guarded
def command(nodes: tuple[str, ...], run: str, base: str, as_json: bool) -> None:
    """Place nothing new on a node; what runs there goes on.

    What restarts there does so elsewhere, if there is room. `flowdist drain` has it left as well.
    """
    from flowdist.control.protocol.events import CordonRequested  # msgspec: not for --help
    from flowdist.runtime.run_folder.folder import find_run

    run_dir, graph = find_run(Path(base), run)
    ask(run_dir, graph, [(CordonRequested(node), node) for node in nodes], as_json=as_json)
