"""Rendezvous of several hosts, from --rdzv-endpoint, --rdzv-conf, --node-rank and --master-addr.

As with torchrun, a command line that names an endpoint is one of several, typed once on each host. One host runs the
controller: the host of the endpoint, or the one with --node-rank 0 if the rendezvous is static.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph
from flowdist.runtime.wire.addresses import Endpoint, addresses_of, endpoint_of, has_address, is_address, why_unbound
from flowdist.runtime.wire.handshake import TOKEN
from flowdist.torchrun.conf import entries_of, pair_of
from flowdist.torchrun.options import Given

C10D_PORT, STATIC_PORT = 29400, 29500
JOIN_TIMEOUT_S = 600.0
YES, NO = ("1", "true", "t", "yes", "y"), ("0", "false", "f", "no", "n")
PLACES = ("rdzv_endpoint", "master_addr", "node_rank")  # options that make a command line one of several


class Rendezvous(NamedTuple):
    """Endpoint at which the hosts of a job meet, and the part of this host."""

    endpoint: Endpoint  # where the controller listens
    runs_controller: bool | None  # of this host; None: if its process is the first of this machine at the endpoint
    job_id: str  # the name by which hosts ask for the job
    token: str  # the secret that all hosts have to know; empty: none
    join_timeout_s: float  # how long this host tries to join
    local_addr: str  # the address at which others reach this host; empty: the user gave none
    hosts: int  # number of hosts that are expected
    hosts_min: int = 1  # nothing starts with fewer hosts
    node_rank: str = ""  # rank of this host; empty: the user gave none
    interface: str = ""  # the network interface at which others reach this host; empty: the user named none
    awaits_name: bool = False  # the endpoint's host decides who runs the controller, and its name is not known here yet


def meets_others(given: Given, nodes_max: int) -> bool:
    """Return whether the command line is one of several, each on its own host; `nodes_max` is that of --nnodes."""
    return nodes_max > 1 and not given.values["standalone"] and any(key in given.spelled for key in PLACES)


def conf_of(given: Given) -> list[tuple[str, str]]:
    """Return the pairs in --rdzv-conf that have a value, in order; the last value of a name counts."""
    pairs = map(pair_of, entries_of(given.values["rdzv_conf"]))
    return [(name, value) for name, value in pairs if value]


def rendezvous_of(given: Given, env: Mapping[str, str], hosts: int) -> Rendezvous:
    """Return the rendezvous of a command line for several hosts; `env` may have a token.

    FlowdistError if the endpoint cannot be read.
    """
    values, conf = given.values, dict(conf_of(given))
    static = values["rdzv_backend"] == "static" and not values["rdzv_endpoint"]
    if static:
        endpoint = endpoint_of(values["master_addr"].strip("[]") or "127.0.0.1", STATIC_PORT)
        port = values["master_port"].strip()
        endpoint = Endpoint(endpoint.host, int(port) if port.isdecimal() else STATIC_PORT)
    else:
        endpoint = endpoint_of(values["rdzv_endpoint"] or "127.0.0.1", C10D_PORT)
    asked = conf.get("is_host", "").lower()
    runs = runs_controller_at(endpoint.host)
    awaits_name = runs is False and not is_address(endpoint.host) and not addresses_of(endpoint.host)
    rank = ""
    if values["rdzv_backend"] == "static" and "node_rank" in given.spelled:
        rank = values["node_rank"].strip() or "0"
        runs, awaits_name = rank == "0", False
    if asked in YES or asked in NO:
        runs, awaits_name = asked in YES, False
    return Rendezvous(
        endpoint,
        runs,
        values["rdzv_id"],
        conf.get("token") or env.get(TOKEN, ""),
        _seconds(conf.get("join_timeout", "")),
        values["local_addr"].strip("[]"),
        hosts,
        node_rank=rank,
        awaits_name=awaits_name,
    )


def runs_controller_at(host: str) -> bool | None:
    """Return whether this host runs the controller of an endpoint; None: if its process is the first there."""
    return None if is_this_machine(host) else False


def _seconds(text: str) -> float:
    try:
        return float(text or JOIN_TIMEOUT_S)
    except ValueError:
        return JOIN_TIMEOUT_S  # `settle` reports it


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint: `head` of `head:29500`, `::1` of `[::1]:29500`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def is_this_machine(host: str) -> bool:
    """Return whether the host is a name or an address of this machine; unknown names are looked up by DNS."""
    if host in ("", "localhost", "0.0.0.0", "::", socket.gethostname()):
        return True
    return any(map(has_address, [host] if is_address(host) else addresses_of(host)))


def with_store_at(graph: RoleGraph, endpoint: str) -> RoleGraph:
    """Return the graph with stores that listen at this HOST:PORT, that of --master-port; empty: at ports of their own.

    Scripts with `init_process_group(init_method="tcp://127.0.0.1:29611")` find the store there. Under
    TORCHELASTIC_USE_AGENT_STORE=True torch makes each rank a client, which would wait in vain; since torch 2.15 only at
    MASTER_ADDR and MASTER_PORT. Elsewhere rank 0 serves a store. If only the address differs (localhost), it logs that
    the port is taken, and uses the store there.
    """
    options = msgspec.structs.replace(graph.options, store_endpoint=endpoint)
    return msgspec.structs.replace(graph, options=options)


def check_store_port(endpoint: str) -> None:
    """Check before the start that a store can listen at HOST:PORT; FlowdistError if that is taken or unbindable."""
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError as error:
        message = f"--master-port {port}: {endpoint} cannot be bound: {why_unbound(error)}"
        help = "name another port, or leave the option out: each generation then has a free one"
        raise FlowdistError(message, help=help) from None


def as_here(theirs: RoleGraph, ours: RoleGraph) -> RoleGraph:
    """Return the controller's graph (`theirs`) with the command, environment, folder and worker count of `ours`.

    FlowdistError if the two command lines cannot be one job.
    """
    if len(theirs.roles) != 1:
        names = ", ".join(role.name for role in theirs.roles)
        message = f"the host that runs the controller runs a topology ({names}), not a command line of torchrun"
        raise FlowdistError(message, help="join it with flowdist join")
    (role,), (own,) = theirs.roles, ours.roles
    if role.name != own.name:
        message = f"--role is {own.name} here, and {role.name} on the host that runs the controller"
        raise FlowdistError(message, help="give every host the same")
    if role.resources.gpu and role.procs != own.procs:
        message = f"--nproc-per-node is {own.procs} here, and {role.procs} on the host that runs the controller"
        raise FlowdistError(message, help="with --numa-binding give every host the same, or leave that out")
    kept = msgspec.structs.replace(
        role,
        procs=own.procs,
        command=own.command,
        env=own.env,
        workdir=own.workdir,
        preload=own.preload,
        warm=own.warm,
    )
    return msgspec.structs.replace(theirs, roles=(kept,), source=ours.source)
