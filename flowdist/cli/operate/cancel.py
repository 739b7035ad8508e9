"""`flowdist cancel`: a run is to end."""

from __future__ import annotations

from pathlib import Path

import click

from flowdist.cli.shared.common import guarded
from flowdist.cli.shared.operating import ask, json_option, run_argument, runs_option, wait_option


@click.command(name="cancel")
@run_argument
@click.option("--now", is_flag=True, help="SIGKILL for everything, without grace.")
@click.option("--reason", default="cancelled by the operator", metavar="TEXT", help="For the journal and the summary.")
@runs_option
@wait_option
@json_option
@guarded
def command(run: str, now: bool, reason: str, base: str, wait: bool, as_json: bool) -> None:
    """End a run: dependents first, each with its full grace.

    \b
    flowdist cancel                        the newest run
    flowdist cancel word2vec-2026 --wait   returns when nothing of it runs any more
    flowdist cancel --now                  at once

    RUN is its name, the beginning of it, or its folder. A second cancel with --now shortens the first.
    """
    from flowdist.control.protocol.events import CancelRequested  # msgspec and the runtime: not for --help
    from flowdist.runtime.run_folder.folder import find_run

    run_dir, graph = find_run(Path(base), run)
    until = (lambda status: False) if wait else None  # until nobody answers, as it is over
    ask(run_dir, graph, [(CancelRequested(reason, now), run)], as_json=as_json, until=until)
