"""`flowdist join`: this machine becomes a node of the job of another host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import click
import msgspec

from flowdist.cli.run.console import Shown
from flowdist.cli.run.execution import RunSettings, interface_option, needs_linux, quiet_option
from flowdist.cli.run.hosts import NO_TOKEN_HELP, TOKEN, Offer, is_loopback, place_of, take_part
from flowdist.cli.shared.common import verb
from flowdist.cli.shared.options import gathered, runs_option
from flowdist.errors import FlowdistError
from flowdist.graph import NODE_MEMBER, NODE_POOL, RoleGraph, parse_duration, parse_memory
from flowdist.runtime.gpus.devices import machine_gpus


class MemberOptions(NamedTuple):
    """Options that say what this host offers, and as which member of an engine."""

    cpus: int | None
    memory: str | None
    notice: str
    member: str | None
    pool: str | None

    def offer(self) -> Offer:
        """Return what the host offers."""
        labels = ((NODE_MEMBER, self.member), (NODE_POOL, self.pool))
        try:
            memory = parse_memory(self.memory) if self.memory is not None else None
            notice_ns = parse_duration(self.notice)
        except ValueError as error:
            raise FlowdistError(f"--memory or --notice: {error}", help="write 64GiB, and 60s") from None
        return Offer(self.cpus, memory, tuple((name, text) for name, text in labels if text), notice_ns)


@verb("join")
@click.argument("endpoint", metavar="HOST:PORT")
@click.option("--id", "job_id", metavar="ID", help="The name of the job, if flowdist run was given one with --id.")
@click.option("--workdir", metavar="DIR", help="Folder in which the commands run here (default: as on the other host).")
@click.option("--local-addr", default="", metavar="ADDRESS", help="Address at which the other hosts reach this one.")
@interface_option
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait for the host (default: 600).")
@click.option("--token-file", metavar="FILE", help=f"Read the token from a file instead of {TOKEN}.")
@gathered(
    "member",
    MemberOptions,
    click.option("--cpus", type=click.IntRange(1, 1 << 16), help="Cores that this host offers (default: all)."),
    click.option("--memory", metavar="SIZE", help="Memory that this host offers, as 64GiB (default: all)."),
    click.option("--notice", default="60s", metavar="DURATION", help="Time from SIGUSR1 to the end of this machine."),
    click.option("--member", metavar="NAME", help="Name of this member, if an engine has started it."),
    click.option("--pool", metavar="NAME", help="Pool of this member, if its engine has several."),
)
@runs_option
@quiet_option
def command(
    endpoint: str,
    job_id: str | None,
    workdir: str | None,
    local_addr: str,
    interface: str,
    timeout: float | None,
    token_file: str | None,
    member: MemberOptions,
    base: str,
    quiet: bool,
) -> None:
    """Join, as a node, the job that `flowdist run --listen HOST:PORT` runs on another host.

    \b
    host0$ flowdist run jobs.py --listen host0:29400
    host1$ flowdist join host0:29400

    The commands come from the other host; programs, scripts and data are those of this machine. SIGTERM makes this host
    leave the job in order; SIGUSR1 says that the machine will be taken away, and the work on it moves elsewhere.
    """
    needs_linux("join")
    if token_file is not None:
        os.environ[TOKEN] = read_token(Path(token_file))  # for flowdist's own processes; workers do not get it
    offer = member.offer()
    if interface and local_addr:
        raise FlowdistError("--interface does not go with --local-addr", help="leave one of the two out")
    place = place_of(endpoint, job_id, local_addr=local_addr.strip("[]"))._replace(interface=interface)
    if not place.token and not is_loopback(place.endpoint.host):
        message = f"without {TOKEN} this host would run any command that a machine at {place.endpoint} sends"
        raise FlowdistError(message, help=NO_TOKEN_HELP)
    if timeout is not None:
        place = place._replace(join_timeout_s=timeout)
    settings, gpus = RunSettings(Path(base), shown=Shown(quiet)), machine_gpus(os.environ)
    take_part(place, settings, lambda graph: in_folder(of_pool(graph, member.pool), workdir), gpus, offer)


def read_token(path: Path) -> str:
    """Return the token in a file, without white space around it."""
    try:
        if path.stat().st_mode & 0o077:
            raise FlowdistError(f"other users may read the token in {path}", help=f"chmod 600 {path}")
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FlowdistError(f"the token cannot be read from {path}: {error}") from None
    if not token:
        raise FlowdistError(f"{path} has no token")
    return token


def of_pool(graph: RoleGraph, pool: str | None) -> RoleGraph:
    """Return the graph without the secrets of roles that never run on members of the pool: they are not known there."""
    if pool is None:
        return graph
    elsewhere = [role.name for role in graph.roles if dict(role.placement.where).get(NODE_POOL, pool) != pool]
    roles = [msgspec.structs.replace(role, secrets=()) if role.name in elsewhere else role for role in graph.roles]
    return msgspec.structs.replace(graph, roles=tuple(roles))


def in_folder(graph: RoleGraph, workdir: str | None) -> RoleGraph:
    """Return the graph with the folders in which the roles' commands run on this host, as absolute paths."""
    roles = []
    for role in graph.roles:
        folder = Path(workdir).resolve() if workdir is not None else Path(role.workdir or ".")
        if not folder.is_dir():
            message = f"role {role.name!r} works in {folder}, and this host has no such folder"
            raise FlowdistError(message, help="have the files at the same place, or name one with --workdir")
        roles.append(msgspec.structs.replace(role, workdir=str(folder)))
    return msgspec.structs.replace(graph, roles=tuple(roles))
