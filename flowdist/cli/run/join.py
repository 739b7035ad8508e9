"""`flowdist join`: this machine becomes a node of the job of another host."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from flowdist.cli.run.console import Shown
from flowdist.cli.run.execution import RunSettings, interface_option, needs_linux, quiet_option
from flowdist.cli.run.hosts import NO_TOKEN_HELP, TOKEN, is_loopback, place_of, take_part
from flowdist.cli.shared.common import verb
from flowdist.cli.shared.options import runs_option
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph


@verb("join")
@click.argument("endpoint", metavar="HOST:PORT")
@click.option("--id", "job_id", metavar="ID", help="The name of the job, if flowdist run was given one with --id.")
@click.option("--workdir", metavar="DIR", help="Folder in which the commands run here (default: as on the other host).")
@click.option("--local-addr", default="", metavar="ADDRESS", help="Address at which the other hosts reach this one.")
@interface_option
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait for the host (default: 600).")
@runs_option
@quiet_option
def command(
    endpoint: str,
    job_id: str | None,
    workdir: str | None,
    local_addr: str,
    interface: str,
    timeout: float | None,
    base: str,
    quiet: bool,
) -> None:
    """Join, as a node, the job that `flowdist run --listen HOST:PORT` runs on another host.

    \b
    host0$ flowdist run jobs.py --listen host0:29400
    host1$ flowdist join host0:29400

    The commands come from the other host; programs, scripts and data are those of this machine. SIGTERM makes this host
    leave the job in order.
    """
    needs_linux("join")
    if interface and local_addr:
        raise FlowdistError("--interface does not go with --local-addr", help="leave one of the two out")
    place = place_of(endpoint, job_id, local_addr=local_addr.strip("[]"))._replace(interface=interface)
    if not place.token and not is_loopback(place.endpoint.host):
        message = f"without {TOKEN} this host would run any command that a machine at {place.endpoint} sends"
        raise FlowdistError(message, help=NO_TOKEN_HELP)
    if timeout is not None:
        place = place._replace(join_timeout_s=timeout)
    from flowdist.runtime.gpus.devices import machine_gpus  # not needed by --help

    gpus = machine_gpus(os.environ)
    take_part(place, RunSettings(Path(base), shown=Shown(quiet)), lambda graph: in_folder(graph, workdir), gpus)


def in_folder(graph: RoleGraph, workdir: str | None) -> RoleGraph:
    """Return the graph with the folders in which the roles' commands run on this host, as absolute paths.

    Args:
        graph: The job, as the other host has it.
        workdir: Folder of this host for all roles; None: each role's own.

    Raises:
        FlowdistError: This host has no such folder.
    """
    roles = []
    for role in graph.roles:
        folder = Path(workdir).resolve() if workdir is not None else Path(role.workdir or ".")
        if not folder.is_dir():
            message = f"role {role.name!r} works in {folder}, and this host has no such folder"
            raise FlowdistError(message, help="have the files at the same place, or name one with --workdir")
        roles.append(msgspec.structs.replace(role, workdir=str(folder)))
    return msgspec.structs.replace(graph, roles=tuple(roles))
