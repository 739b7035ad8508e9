"""`flowdist cancel`: end a run."""

from __future__ import annotations

import click

from flowdist.cli.shared.common import verb
from flowdist.cli.shared.runs import RunOptions, give_orders, run_options, wait_option


@verb("cancel")
@run_options
@click.option("--now", is_flag=True, help="Send SIGKILL at once, without grace.")
@click.option("--reason", default="cancelled by the operator", metavar="TEXT", help="For the journal and the summary.")
@wait_option
def command(named: RunOptions, now: bool, reason: str, wait: bool) -> None:
    """End a run: dependents first, each with its full grace.

    \b
    flowdist cancel                        the newest run
    flowdist cancel word2vec-2026 --wait   return when nothing of the run is running any more
    flowdist cancel --now                  kill everything at once

    RUN is the run's name, the beginning of its name, or its folder. A second cancel with --now shortens the first.
    """
    from flowdist.control.protocol.events import CancelRequested  # msgspec and the runtime: not needed by --help

    until = (lambda status: False) if wait else None  # until the run is over, and no controller answers
    give_orders(named, [(CancelRequested(reason, now), named.run)], until=until)
