"""A job over several hosts, of which each is told by a command of its own: one runs the controller, the others join."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click
import msgspec

from flowdist import __version__
from flowdist.cli.run.console import LINES, Console, Shown, finish
from flowdist.cli.run.run import EXIT_CODES, carry_out
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan
from flowdist.graph import NODE_PROCS, Cluster, NodeSpec, RoleGraph, encode_graph

if TYPE_CHECKING:
    from flowdist.runtime.run_folder.logs import OpenSink
    from flowdist.runtime.supervisor.event_printer import Show
    from flowdist.runtime.supervisor.host_process import RunResult
    from flowdist.runtime.worker_env.secret_values import Mask
    from flowdist.torchrun.rendezvous import Rendezvous

TOKEN = "FLOWDIST_TOKEN"  # as runtime.handshake has it, which --help does without
NO_TOKEN_HELP = f"set {TOKEN} to the same secret on every host: head -c 32 /dev/urandom | base64"


class Here(NamedTuple):
    """How this host takes part: where the folder of its run is, what its name begins with, what its terminal shows.

    The last two are for the host with the controller.
    """

    base: Path
    prefix: str = ""
    shown: Shown = LINES
    opener: Callable[[Path, Show], OpenSink] | None = None
    detach: bool = False
    metrics_port: int | None = None
    resume: str = ""  # the run to go on with
    plan: Plan = Plan(())


def meet(
    graph: RoleGraph, place: Rendezvous, here: Here, adapt: Callable[[RoleGraph], RoleGraph], gpus: tuple[str, ...]
) -> NoReturn:
    """Run the graph with other hosts, or take part in theirs, and end with the exit code of the job.

    Args:
        adapt: The graph of the host with the controller, as this one runs it. FlowdistError when it cannot.
        gpus: Those of this machine.
    """
    from flowdist.runtime.wire.addresses import listening_address, reserve

    if place.token:
        os.environ[TOKEN] = place.token  # for our own processes; workers do not get it
    if place.runs_controller is False:
        take_part(place, here, adapt, gpus)
    address = listening_address(place.endpoint.host)
    reserved = reserve(address, place.endpoint.port)
    if reserved is None and place.runs_controller is None:
        take_part(place, here, adapt, gpus)
    if reserved is None:
        message = f"another flowdist of this machine listens at port {place.endpoint.port} already"
        raise FlowdistError(message, help="take another port, on every host")
    open_job(graph, place, here, address, gpus)


def listen_for_hosts(graph: RoleGraph | None, endpoint: str, job_id: str | None, here: Here) -> NoReturn:
    """Run a topology, or without one the run to resume, on this host and on those that join."""
    from flowdist.runtime.gpus.devices import machine_gpus
    from flowdist.runtime.run_folder.folder import find_run
    from flowdist.runtime.run_folder.resume import saved_endpoint

    if graph is None:
        run_dir, graph = find_run(here.base, here.resume)
        door = saved_endpoint(run_dir)
        job_id = job_id or (door.job if door is not None else None)
    place = place_of(endpoint, job_id, hosts=max(1, len(graph.cluster.nodes)))
    if not place.token and not is_loopback(place.endpoint.host):
        raise FlowdistError(
            f"without {TOKEN} whoever can reach {place.endpoint} could take part, and read the topology",
            help=NO_TOKEN_HELP,
        )
    gpus = machine_gpus(os.environ)
    place = place._replace(runs_controller=True, hosts_min=graph.cluster.min_nodes)
    meet(graph, place, here, lambda graph: graph, gpus)


def place_of(endpoint: str, job_id: str | None, *, hosts: int = 1, local_addr: str = "") -> Rendezvous:
    """Where a topology's hosts meet. FlowdistError when it is no HOST:PORT."""
    from flowdist.runtime.wire.addresses import endpoint_of
    from flowdist.torchrun.rendezvous import C10D_PORT, JOIN_TIMEOUT_S, Rendezvous

    found, token = endpoint_of(endpoint, C10D_PORT), os.environ.get(TOKEN, "")
    return Rendezvous(found, False, job_id or "flowdist", token, JOIN_TIMEOUT_S, local_addr, hosts)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def open_job(graph: RoleGraph, place: Rendezvous, here: Here, address: str, gpus: tuple[str, ...]) -> NoReturn:
    """Be the host of the controller."""
    from flowdist.runtime.controller.host_registry import Listening, node_name
    from flowdist.runtime.run_folder.resume import RunEndpoint
    from flowdist.runtime.supervisor.local_node import Site
    from flowdist.runtime.supervisor.supervisor import Hosting
    from flowdist.runtime.wire.addresses import address_of, interface_of, reachable_address

    own = address_of(place.local_addr) if place.local_addr else reachable_address(address)
    name = node_name(socket.gethostname(), {role.name for role in graph.roles})
    cluster = Cluster((_spec(name, gpus, place),), min_nodes=place.hosts_min)
    fresh = msgspec.structs.replace(graph, cluster=cluster)
    if not place.token and not is_loopback(address):
        door = f"{address or 'any address of this machine'}, port {place.endpoint.port}"
        text = f"whoever can reach {door}, may join: docs/hosts.md says how FLOWDIST_TOKEN keeps others out"
        click.secho(f"flowdist: {text}", fg="yellow", err=True)
    listening = Listening(RunEndpoint(str(place.endpoint), place.job_id), address, place.endpoint.port, place.hosts)
    carry_out(
        fresh if not here.resume else None,
        here.plan,
        here.base,
        resume=here.resume,
        shown=here.shown,
        detach=here.detach,
        metrics_port=here.metrics_port,
        prefix=here.prefix,
        opener=here.opener,
        hosting=Hosting(listening, Site(own, interface_of(own))),
    )


def take_part(
    place: Rendezvous, here: Here, adapt: Callable[[RoleGraph], RoleGraph], gpus: tuple[str, ...]
) -> NoReturn:
    """Be one of the other hosts."""
    from flowdist.runtime.worker_env.secret_values import Mask

    mask = Mask()
    console = Console(here.shown._replace(live=False), mask)
    result = asyncio.run(_take_part(place, here, adapt, gpus, console, mask))
    finish(result, False, mask)
    sys.exit(EXIT_CODES[result.outcome])


async def _take_part(
    place: Rendezvous,
    here: Here,
    adapt: Callable[[RoleGraph], RoleGraph],
    gpus: tuple[str, ...],
    console: Console,
    mask: Mask,
) -> RunResult:
    from flowdist.runtime.run_folder.folder import JOINED
    from flowdist.runtime.supervisor.joined_host import JoinedHost
    from flowdist.runtime.supervisor.joining import join_job
    from flowdist.runtime.supervisor.local_node import Site
    from flowdist.runtime.wire.addresses import address_of, interface_of
    from flowdist.runtime.wire.endpoint import ControllerEndpoint
    from flowdist.runtime.worker_env.run_environment import write_environment
    from flowdist.runtime.worker_env.secret_values import check_secrets

    controller = ControllerEndpoint(place.endpoint.host, place.endpoint.port, place.job_id)
    joined = await join_job(controller, place.token, socket.gethostname(), place.join_timeout_s, console.show)
    graph = adapt(joined.welcome.graph)
    mask.add(check_secrets(graph, os.environ))
    run_dir = _folder(here.base, joined.welcome.run_id, joined.welcome.node, graph)
    (run_dir / JOINED).write_text(f"{place.endpoint}\n")
    write_environment(run_dir, graph, mask, __version__)
    own = address_of(place.local_addr) if place.local_addr else joined.connection.own_address
    open_sink = here.opener(run_dir, console.show) if here.opener is not None else None
    console.show("event", f"joined {place.endpoint} as {joined.welcome.node}; logs: {run_dir}")
    procs = own_procs(joined.welcome.graph, graph)
    spec, site = _spec(joined.welcome.node, gpus, place, procs), Site(own, interface_of(own))
    return await JoinedHost(joined, place.token, spec, graph, site, gpus, run_dir, console.show, open_sink).run()


def own_procs(theirs: RoleGraph, ours: RoleGraph) -> int:
    """How many workers a replica has here, where that is another number than elsewhere; else 0."""
    pairs = zip(theirs.roles, ours.roles, strict=True)
    return next((here.procs for there, here in pairs if there.procs != here.procs), 0)


def _spec(name: str, gpus: tuple[str, ...], place: Rendezvous, procs: int = 0) -> NodeSpec:
    """What this machine offers."""
    from flowdist.control.protocol.ids import NODE_RANK
    from flowdist.runtime.gpus.devices import machine_cpus, machine_memory

    said = {NODE_RANK: place.node_rank, NODE_PROCS: str(procs or "")}
    labels = tuple((key, value) for key, value in said.items() if value)
    return NodeSpec(name, cpu=machine_cpus(), gpu=len(gpus), memory=machine_memory(), labels=labels)


def _folder(base: Path, run_id: str, node: str, graph: RoleGraph) -> Path:
    """`runs/<run>.<node>/`: apart from that of the run also where the hosts share a file system."""
    run_dir = base / f"{run_id}.{node}"
    number = 1
    while run_dir.exists():
        number += 1
        run_dir = base / f"{run_id}.{node}.{number}"
    run_dir.mkdir(parents=True)
    (run_dir / "graph.json").write_bytes(encode_graph(graph))
    (run_dir / "checkpoints").mkdir()
    return run_dir.resolve()
