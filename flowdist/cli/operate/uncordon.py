"""`flowdist uncordon node1`: a node is used again."""

from __future__ import annotations

from pathlib import Path

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import ask, json_option, run_option, runs_option


@click.command(name="uncordon")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@run_option
@runs_option
@json_option
@guarded
def command(nodes: tuple[str, ...], run: str, base: str, as_json: bool) -> None:
    """Use a node again, whatever it was cordoned or drained for.

    What told against it is forgotten (R22).
    """
    from flowdist.control.protocol.events import UncordonRequested  # msgspec: not for --help
    from flowdist.runtime.run_folder.folder import find_run

    run_dir, graph = find_run(Path(base), run)
    ask(run_dir, graph, [(UncordonRequested(node), node) for node in nodes], as_json=as_json)
