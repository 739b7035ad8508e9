"""`flowdist run graph.json --listen HOST:PORT`: the controller of an exported job, in a pod that any other may replace.

The file is the role graph that `flowdist export` has written. This host runs the controller and nothing else: members
join it. The same command line starts the job, continues it where the pod before has left its journal, and ends at once
with the exit code of a job that is over.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click
import msgspec

from flowdist.cli.run.execution import EXIT_CODES, RunSettings, execute
from flowdist.cli.run.hosts import place_of, refuse_without_token, show_protection
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph, decode_graph
from flowdist.runtime.controller.host_registry import Listening
from flowdist.runtime.run_folder.folder import run_dirs
from flowdist.runtime.run_folder.resume import RunEndpoint
from flowdist.runtime.run_folder.runs import has_begun, state_of
from flowdist.runtime.supervisor.local_node import Site
from flowdist.runtime.supervisor.supervisor import Hosting
from flowdist.runtime.wire.addresses import interface_of, listening_address, reachable_address, reserve

SUFFIX = ".json"


def run_compiled(file: Path, endpoint: str | None, job_id: str | None, settings: RunSettings) -> NoReturn:
    """Run the controller of a job on this host, and exit with the exit code of the job.

    Args:
        file: The role graph as JSON.
        endpoint: The HOST:PORT at which members reach this host.
        job_id: The name by which members ask for the job; None: the default.
        settings: Settings of the run. The newest run in its folder is continued if it has begun and is not over.

    Raises:
        FlowdistError: The graph cannot be read, there is no endpoint or no token, or the port is taken.
    """
    if endpoint is None:
        raise FlowdistError(f"{file} runs on members that join", help="write --listen HOST:PORT")
    graph, past = _read(file), _newest(settings.base)
    if past is not None:
        _exit_if_over(past)
        settings = settings._replace(resume=past.name)
    _serve(graph, endpoint, job_id, settings)


def _read(file: Path) -> RoleGraph:
    try:
        return decode_graph(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise FlowdistError(f"{file} is no role graph: {error}", help="flowdist export writes it") from None


def _newest(base: Path) -> Path | None:
    """Return the folder of the newest run that has begun; None if there is none."""
    begun = [path for path in run_dirs(base) if has_begun(path)]
    return max(begun, key=lambda path: path.stat().st_mtime_ns, default=None)


def _exit_if_over(run_dir: Path) -> None:
    """Exit with the exit code of the run's job if the job is over: the pod has ended before that was seen."""
    end = state_of(run_dir)
    if end.state in EXIT_CODES:
        click.echo(f"flowdist: run {run_dir.name} is over: {end.state}{f' ({end.reason})' if end.reason else ''}")
        sys.exit(EXIT_CODES[end.state])


def _serve(graph: RoleGraph, endpoint: str, job_id: str | None, settings: RunSettings) -> NoReturn:
    place = place_of(endpoint, job_id)
    refuse_without_token(place)
    address = listening_address(place.endpoint.host)
    reserved = reserve(address, place.endpoint.port)  # until the process ends: another flowdist does not take the port
    if reserved is None:
        raise FlowdistError(f"port {place.endpoint.port} of this machine is taken by another flowdist")
    show_protection(place.token, place.endpoint, address)
    members = sum(role.max_replicas for role in graph.roles)
    listening = Listening(RunEndpoint(str(place.endpoint), place.job_id), address, place.endpoint.port, members)
    own = reachable_address(address)
    hosting = Hosting(listening, Site(own, interface_of(own)))
    execute(None if settings.resume else graph, settings._replace(hosting=hosting))
