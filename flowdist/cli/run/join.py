"""`flowdist join`: this machine as a node of a job that another host runs."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from flowdist.cli.run.console import Shown
from flowdist.cli.run.hosts import NO_TOKEN_HELP, TOKEN, Here, is_loopback, place_of, take_part
from flowdist.cli.run.run import needs_linux
from flowdist.cli.shared.common import guarded
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph


@click.command(name="join")
@click.argument("endpoint", metavar="HOST:PORT")
@click.option("--id", "job_id", metavar="ID", help="The name of the job, where flowdist run has been given one.")
@click.option("--workdir", metavar="DIR", help="Where the commands run here (default: as on the other host).")
@click.option("--local-addr", default="", metavar="ADDRESS", help="By which the other hosts reach this one.")
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="How long to call (default: 600).")
@click.option("--runs", "base", default="runs", metavar="DIR", help="Where the folders of runs are (default: runs).")
@click.option("--quiet", "-q", is_flag=True, help="Not the workers' output: only what flowdist does.")
@guarded
def command(
    endpoint: str,
    job_id: str | None,
    workdir: str | None,
    local_addr: str,
    timeout: float | None,
    base: str,
    quiet: bool,
) -> None:
    """Take part, as a node, in the job that `flowdist run --listen HOST:PORT` runs on another host.

    \b
    host0$ flowdist run jobs.py --listen host0:29400
    host1$ flowdist join host0:29400

    The commands come from there; programs, scripts and data are those of this machine. SIGTERM leaves in order.
    """
    needs_linux("join")
    place = place_of(endpoint, job_id, local_addr=local_addr)
    if not place.token and not is_loopback(place.endpoint.host):
        message = f"without {TOKEN} this host would run what anybody at {place.endpoint} tells it to"
        raise FlowdistError(message, help=NO_TOKEN_HELP)
    if timeout is not None:
        place = place._replace(join_timeout_s=timeout)
    from flowdist.runtime.gpus.devices import machine_gpus  # not for --help

    gpus = machine_gpus(os.environ)
    take_part(place, Here(Path(base), shown=Shown(quiet)), lambda graph: in_folder(graph, workdir), gpus)


def in_folder(graph: RoleGraph, workdir: str | None) -> RoleGraph:
    """The graph with the folders that this host has. FlowdistError when there is no such folder."""
    roles = []
    for role in graph.roles:
        folder = Path(workdir).resolve() if workdir is not None else Path(role.workdir or ".")
        if not folder.is_dir():
            message = f"role {role.name!r} works in {folder}, and this host has no such folder"
            raise FlowdistError(message, help="have the files at the same place, or name one with --workdir")
        roles.append(msgspec.structs.replace(role, workdir=str(folder)))
    return msgspec.structs.replace(graph, roles=tuple(roles))
