"""`flowdist ui`: the timeline of a run in the browser, as it goes on."""

from __future__ import annotations

import contextlib
import os

import click

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.records import find_record, refuse_macro
from flowdist.cli.shared.runs import complete_run
from flowdist.errors import FlowdistError
from flowdist.record.reader import JOURNAL
from flowdist.runtime.run_folder.runs import not_hidden
from flowdist.ui.follow import FollowedRun
from flowdist.ui.server import RunServer


@verb("ui")
@click.argument("run", default="latest", shell_complete=complete_run)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of 127.0.0.1 (default: any free one).")
def command(run: str, port: int) -> None:
    """Show a run in the browser while it goes on: roles, nodes, incidents with their reasons, and logs.

    \b
    flowdist ui                     the newest run
    flowdist ui word2vec-2026       by the beginning of its name
    flowdist ui --port 8080         at a port that you can forward: ssh -L 8080:127.0.0.1:8080 host

    The page is at an address of this machine that nobody can guess; it is printed. Ctrl-C ends the page, not the run.
    RUN is the run's name, the beginning of its name, or its folder. For a file, see flowdist timeline.
    """
    path = find_record(run)
    if path.name != JOURNAL:
        raise FlowdistError(f"{path} is no run", help="for a trace, use flowdist timeline")
    followed = FollowedRun(path.parent)
    header = followed.timeline().header
    refuse_macro(header, str(path))
    if warning := not_hidden(header.graph, os.environ):
        click.echo(f"warning: {warning}", err=True)
    with RunServer(followed, port) as server, contextlib.suppress(KeyboardInterrupt):
        click.echo(server.url)
        server.serve_forever(poll_interval=0.1)
