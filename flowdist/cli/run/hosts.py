"""Jobs over several hosts. Each host is started by its own command: one runs the controller, the others join."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import click
import msgspec

from flowdist import __version__
from flowdist.cli.run.console import Console
from flowdist.cli.run.execution import EXIT_CODES, RunSettings, execute
from flowdist.cli.shared.common import paint
from flowdist.control.protocol.ids import NODE_RANK
from flowdist.errors import FlowdistError
from flowdist.graph import MINUTE, NODE_PROCS, Cluster, NodeSpec, RoleGraph, decode_graph
from flowdist.runtime.controller.host_registry import Listening, node_name
from flowdist.runtime.gpus.devices import machine_cpus, machine_gpus, machine_memory
from flowdist.runtime.joined.joined_host import HostResult, JoinedHost
from flowdist.runtime.joined.joining import join_job
from flowdist.runtime.run_folder.folder import JOINED, find_run, new_joined_run, run_dirs
from flowdist.runtime.run_folder.resume import RunEndpoint, saved_endpoint
from flowdist.runtime.run_folder.root_cause import root_cause_text, write_outer_error_file
from flowdist.runtime.run_folder.runs import has_begun, over_at, state_of, write_end
from flowdist.runtime.supervisor.local_node import Site
from flowdist.runtime.supervisor.supervisor import Hosting
from flowdist.runtime.umask import take_umask_of
from flowdist.runtime.wire.addresses import (
    Endpoint,
    Taken,
    address_of,
    endpoint_of,
    interface_of,
    listening_address,
    listening_addresses,
    reachable_address,
    reserve,
    reserve_all,
    wait_for_name,
)
from flowdist.runtime.wire.dialing import dial, is_encrypted
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import JoinRequest
from flowdist.runtime.wire.handshake import ConnectionRejected, Credentials, is_guessable
from flowdist.runtime.wire.interfaces import addresses_on
from flowdist.runtime.wire.tls import EXTRA, can_encrypt
from flowdist.runtime.worker_env.run_environment import write_environment
from flowdist.runtime.worker_env.secret_values import Mask, check_secrets
from flowdist.text.queued_output import QueuedOutput
from flowdist.torchrun.rendezvous import C10D_PORT, JOIN_TIMEOUT_S, Rendezvous, is_this_machine, runs_controller_at

if TYPE_CHECKING:
    from flowdist.runtime.supervisor.fleet_keeper import Employer

Adapt = Callable[[RoleGraph], RoleGraph]
TOKEN = "FLOWDIST_TOKEN"  # the same as runtime.wire.handshake.TOKEN, which --help need not import
RANDOM = "head -c 32 /dev/urandom | base64"  # prints a token
NO_TOKEN_HELP = f"set {TOKEN} to the same secret on every host: {RANDOM}"

_ENDED = {"succeeded": "succeeded", "failed": "failed", "cancelled": "been cancelled"}
NO_RUN = "?"  # the id of no run: a controller that is asked for it answers with its own
NOT_ENCRYPTED = "flowdist's connections between hosts are authenticated when they begin, and are not encrypted"


def meet(graph: RoleGraph, place: Rendezvous, settings: RunSettings, adapt: Adapt, gpus: tuple[str, ...]) -> NoReturn:
    """Run the graph with other hosts, or join the job of another host, and exit with the exit code of the job.

    If `place` does not say which host runs the controller, the first process that can listen at the endpoint does.
    `adapt` changes the graph that a host gets which joins.
    """
    if place.token:
        os.environ[TOKEN] = place.token  # for flowdist's own processes; workers do not get it
    if place.awaits_name:
        place = _when_known(place)
    if place.runs_controller is False:
        take_part(place, settings, adapt, gpus)
    if place.runs_controller:
        _check_endpoint(place)
    addresses = _addresses_to_bind(place)
    try:
        _reserved = reserve_all(addresses, place.endpoint.port)
    except Taken:
        if place.runs_controller is not None:
            raise
        take_part(place, settings, adapt, gpus)
    addresses = addresses or ("",)
    own = address_of(place.local_addr) if place.local_addr else reachable_address(addresses[0], place.endpoint.host)
    name = node_name(socket.gethostname(), {role.name for role in graph.roles})
    cluster = Cluster((_spec(name, gpus, place),), min_nodes=place.hosts_min)  # this host alone
    serve(msgspec.structs.replace(graph, cluster=cluster), place, settings, addresses, own)


def _check_endpoint(place: Rendezvous) -> None:
    """Warn if the endpoint, where the other hosts look for the controller, names another machine than this one."""
    if is_this_machine(place.endpoint.host):
        return
    own, why = socket.gethostname(), f"another controller of job {place.job_id!r} answers there"

    async def ask() -> None:
        endpoint = ControllerEndpoint(place.endpoint.host, place.endpoint.port, place.job_id, NO_RUN)
        _, writer = await dial(endpoint, Credentials(place.token))
        writer.transport.abort()

    try:
        asyncio.run(ask())
    except ConnectionRejected as error:  # it says which run it is
        why = error.message
    except OSError:
        text = f"the endpoint {place.endpoint} is no address of this host, {own}: others may not find this controller"
        _warn(text)
        return
    message = f"{own} cannot run the controller, because the one at {place.endpoint} answers: {why}"
    help = "leave is_host=1 (--listen) out to join that job, or name this host in the endpoint"
    raise FlowdistError(message, help=help)


def _when_known(place: Rendezvous) -> Rendezvous:
    """Wait until the names are known that the user wrote, and return the place with the host of the controller."""
    left_s = place.join_timeout_s
    for name in filter(None, (place.endpoint.host, place.local_addr)):
        left_s = wait_for_name(name, left_s, _warn)
    if place.runs_controller is False and place.awaits_name:
        place = place._replace(runs_controller=runs_controller_at(place.endpoint.host), awaits_name=False)
    return place._replace(join_timeout_s=left_s)


def _warn(text: str) -> None:
    paint(f"flowdist: {text}", fg="yellow", err=True)


def _addresses_to_bind(place: Rendezvous) -> tuple[str, ...]:
    """Return the addresses at which the controller listens on this host; empty: all."""
    addresses = listening_addresses(place.endpoint.host)
    if not place.interface:
        return addresses
    wanted = addresses_on(place.interface)
    if addresses and not set(addresses) & set(wanted):
        where = f"{addresses[0]}, an address of {interface_of(addresses[0]) or 'another interface'}"
        message = f"the endpoint {place.endpoint} is {where}, and --interface is {place.interface}"
        raise FlowdistError(message, help=f"name one of its addresses: {', '.join(wanted)}")
    return tuple(address for address in addresses if address in wanted) or tuple(wanted)


def listen_for_hosts(
    graph: RoleGraph | None, endpoint: str, job_id: str | None, settings: RunSettings, interface: str = ""
) -> NoReturn:
    """Run a job on this host and on the hosts that join it, and exit with its exit code."""
    if graph is None:
        run_dir, graph = find_run(settings.base, settings.resume)
        door = saved_endpoint(run_dir)
        job_id = job_id or (door.job if door is not None else None)
    place = place_of(endpoint, job_id, hosts=max(1, len(graph.cluster.nodes)))
    refuse_without_token(place)
    gpus = machine_gpus(os.environ)
    place = place._replace(runs_controller=True, hosts_min=graph.cluster.min_nodes, interface=interface)
    meet(graph, place, settings, lambda graph: graph, gpus)


def run_compiled(file: Path, endpoint: str | None, job_id: str | None, settings: RunSettings) -> NoReturn:
    """Run the controller of an exported job in a pod that any other may replace: `run graph.json --listen HOST:PORT`.

    This host runs the controller and nothing else: members join it. The same command line starts the job, continues the
    newest run of the folder where the pod before has left its journal, and ends at once for a job that is over.
    """
    if endpoint is None:
        raise FlowdistError(f"{file} runs on members that join", help="write --listen HOST:PORT")
    try:
        graph = decode_graph(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise FlowdistError(f"{file} is no role graph: {error}", help="flowdist export writes it") from None
    begun = [path for path in run_dirs(settings.base) if has_begun(path)]
    past = max(begun, key=lambda path: path.stat().st_mtime_ns, default=None)
    if past is not None:
        end = state_of(past)
        if end.state in EXIT_CODES:  # the pod before has ended before that was seen
            click.echo(f"flowdist: run {past.name} is over: {end.state}{f' ({end.reason})' if end.reason else ''}")
            sys.exit(EXIT_CODES[end.state])
        settings = settings._replace(resume=past.name)
    place = place_of(endpoint, job_id, hosts=sum(role.max_replicas for role in graph.roles))
    refuse_without_token(place)
    address = listening_address(place.endpoint.host)
    _reserved = reserve(address, place.endpoint.port)  # until the process ends
    serve(graph, place, settings, [address], reachable_address(address))


def refuse_without_token(place: Rendezvous) -> None:
    """Refuse to let other machines join a job without a token."""
    if not place.token and not is_loopback(place.endpoint.host):
        message = f"without {TOKEN} every machine that reaches {place.endpoint} could join and read the topology"
        raise FlowdistError(message, help=NO_TOKEN_HELP)


def place_of(endpoint: str, job_id: str | None, *, hosts: int = 1, local_addr: str = "") -> Rendezvous:
    """Return the place at which the hosts of a topology meet, with the token of the environment."""
    found, token = endpoint_of(endpoint, C10D_PORT), os.environ.get(TOKEN, "")
    return Rendezvous(found, False, job_id or "flowdist", token, JOIN_TIMEOUT_S, local_addr, hosts)


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine, at an address that no other machine reaches."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def serve(
    graph: RoleGraph | None,
    place: Rendezvous,
    settings: RunSettings,
    addresses: Sequence[str],
    own: str,
    employ: Callable[[Path], Employer] | None = None,
) -> NoReturn:
    """Run the controller on this host, which others reach at `own`, and exit with the exit code of the job.

    The controller listens at the addresses, of which "" means all of this machine.
    """
    address, *also = addresses
    show_protection(place.token, place.endpoint, address)
    door = RunEndpoint(str(place.endpoint), place.job_id)
    listening = Listening(door, address, place.endpoint.port, place.hosts, tuple(also))
    hosting = Hosting(listening, Site(own, interface_of(own)), employ)
    execute(graph if not settings.resume else None, settings._replace(hosting=hosting))


def show_protection(token: str, endpoint: Endpoint, address: str) -> None:
    """Print how the connections of other hosts to `endpoint` are protected, as a warning if not, or badly."""
    door = f"{address or 'any address of this machine'}, port {endpoint.port}"
    if not token:
        if not is_loopback(address):
            _warn(f"every machine that reaches {door}, may join: docs/hosts_trust.md says how {TOKEN} keeps others out")
        return
    if is_guessable(token) and not is_loopback(address):
        _warn(
            f"the token is too short, and can be guessed by a machine that reaches {door}: take a random one, {RANDOM}"
        )
    if can_encrypt():
        paint("flowdist: flowdist's connections to other hosts are encrypted (TLS)", dim=True, err=True)
    else:
        _warn(f"{NOT_ENCRYPTED}: pip install '{EXTRA}' on this host")


class Offer(NamedTuple):
    """Part of a machine that a joining host offers, and the notice that it gets of the machine's end."""

    cpus: int | None = None  # number of cores; None: all that this process may use
    memory: int | None = None  # bytes; None: that of the machine
    labels: tuple[tuple[str, str], ...] = ()  # more labels of the node
    notice_ns: int = MINUTE  # time from SIGUSR1 until the machine is taken away


WHOLE_MACHINE = Offer()


def take_part(
    place: Rendezvous, settings: RunSettings, adapt: Adapt, gpus: tuple[str, ...], offer: Offer = WHOLE_MACHINE
) -> NoReturn:
    """Join the job of the host at `place` as a node with what this host offers, and exit with its exit code."""
    place = _when_known(place)
    with QueuedOutput():
        sys.exit(EXIT_CODES[asyncio.run(_take_part(place, settings, adapt, gpus, offer))])


async def _take_part(
    place: Rendezvous, settings: RunSettings, adapt: Adapt, gpus: tuple[str, ...], offer: Offer
) -> str:
    """Join the job, run this host's node until the job ends, show the end, and return the outcome."""
    mask = Mask()
    console = Console(settings.shown._replace(live=False), mask)
    _own_address(place, "")  # a mistake is found before this host joins
    controller = ControllerEndpoint(place.endpoint.host, place.endpoint.port, place.job_id)
    request = JoinRequest(socket.gethostname(), shows_progress=sys.stderr.isatty())
    over_here = functools.partial(over_at, settings.base, str(place.endpoint))
    joined = await join_job(controller, place.token, request, place.join_timeout_s, console.show, over_here)
    console.host, console.now_ns = joined.welcome.node, joined.clock.now_ns
    graph = adapt(joined.welcome.graph)
    mask.add(check_secrets(graph, os.environ))
    run_dir = new_joined_run(settings.base, joined.welcome.run_id, joined.welcome.node, graph)
    take_umask_of(run_dir)
    (run_dir / JOINED).write_text(f"{place.endpoint}\n")
    write_environment(run_dir, graph, mask, __version__)
    own = _own_address(place, joined.connection.own_address)
    open_sink = settings.opener(run_dir, console.show) if settings.opener is not None else None
    how = " over TLS" if is_encrypted(joined.connection.writer) else ""
    console.show("event", f"joined {place.endpoint} as {joined.welcome.node}{how}; logs: {run_dir}")
    if place.token and not how:
        console.show("warning", f"{NOT_ENCRYPTED}: pip install '{EXTRA}' on {place.endpoint.host}")
    pairs = zip(joined.welcome.graph.roles, graph.roles, strict=True)
    procs = next((own.procs for other, own in pairs if other.procs != own.procs), 0)  # 0: as many as the job says
    spec, site = _spec(joined.welcome.node, gpus, place, procs, offer), Site(own, interface_of(own))
    show, progress = console.show, request.shows_progress
    host = JoinedHost(
        joined, spec, graph, site, gpus, run_dir, show, open_sink, shows_progress=progress, notice_ns=offer.notice_ns
    )
    result = await host.run()
    _finish(result, run_dir, console, mask)
    return result.over.outcome


def _finish(result: HostResult, run_dir: Path, console: Console, mask: Mask) -> None:
    """Write the end of the job to the folder of the run on this host, and print it, with a root cause that ran here.

    The host with the controller prints the summary, once.
    """
    over, cause = result.over, ""
    if over.outcome == "failed":
        cause = mask(root_cause_text(result, run_dir))
        if why := write_outer_error_file(result, run_dir, os.environ, mask):
            console.show("warning", why)
    summary = {"outcome": over.outcome, "reason": over.reason, "lasted_s": over.t_ns / 1e9, "root_cause": cause}
    if why := write_end(run_dir, summary):
        console.show("warning", why)
    console.show("event", f"the job has {_ENDED[over.outcome]}{over.reason and f': {over.reason}'}")
    if cause:
        click.echo("\n" + cause, err=True, nl=False)
    console.show("event", f"logs of this host: {run_dir}")


def _own_address(place: Rendezvous, connected: str) -> str:
    """Return the address at which other hosts reach this one, which has joined."""
    if place.local_addr:
        return address_of(place.local_addr)
    if place.interface:
        found = addresses_on(place.interface)
        return next((address for address in found if (":" in address) == (":" in connected)), found[0])
    return connected


def _spec(
    name: str, gpus: tuple[str, ...], place: Rendezvous, procs: int = 0, offer: Offer = WHOLE_MACHINE
) -> NodeSpec:
    """Return this machine, or the offered part, as a node; with its rank and number of workers (0: any) as labels."""
    words = {NODE_RANK: place.node_rank, NODE_PROCS: str(procs or "")}
    labels = (*((key, value) for key, value in words.items() if value), *offer.labels)
    cpus = machine_cpus() if offer.cpus is None else offer.cpus
    memory = machine_memory() if offer.memory is None else offer.memory
    return NodeSpec(name, cpu=cpus, gpu=len(gpus), memory=memory, labels=labels)
