"""Options for what a run shows on the terminal, and whether it stays there."""

from __future__ import annotations

from typing import NamedTuple

import click

from flowdist.cli.shared.options import gathered


class DisplayOptions(NamedTuple):
    """Output of workers, picture, background and metrics of a run."""

    quiet: bool
    plain: bool
    detach: bool
    metrics_port: int | None


quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show events of flowdist, but no output of workers.")
display_options = gathered(
    "display",
    DisplayOptions,
    quiet_option,
    click.option("--plain", is_flag=True, help="Print lines alone; on a terminal, draw no picture of the job."),
    click.option("--detach", "-d", is_flag=True, help="Run in the background after the start; see flowdist status."),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus at this port of 127.0.0.1; 0: any free port.",
    ),
)
