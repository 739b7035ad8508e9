"""Admission of other hosts to a job: the handshake, and the names of their nodes."""

from __future__ import annotations

import asyncio
import re
import sys

import msgspec

from flowdist.control.job.state import JobState
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import RoleGraph
from flowdist.runtime.run_folder.resume import RunEndpoint
from flowdist.runtime.wire.endpoint import INCARNATIONS, keep_alive
from flowdist.runtime.wire.frames import JoinRequest, Welcome
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import FRAME_MAX, FROM_CLIENT, HANDSHAKE_S, Refused, ServerHandshake

NAME_MAX = 50


def node_name(host: str, roles: set[str]) -> NodeName:
    """Return a valid node name made from a host's name, as `gpu07` from `gpu07.cluster`.

    It is the part before the first dot, in lower case, with hyphens for other characters than letters and digits, cut
    to NAME_MAX characters. If it begins with no letter, it gets the prefix `host-`. If a role has that name, or fault
    plans reserve it (`all`, `controller`), it gets the suffix `-host`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", host.lower().partition(".")[0]).strip("-")[:NAME_MAX]
    name = name if re.match(r"[a-z]", name) else f"host-{name}".rstrip("-")
    return f"{name}-host" if name in roles | {"all", "controller"} else name


class Listening(msgspec.Struct, frozen=True):
    """Settings of a controller that listens for other hosts."""

    door: RunEndpoint  # what the other hosts ask for: the endpoint and the name of the job
    address: str  # the address to bind; empty: all addresses of this machine
    port: int
    hosts: int  # expected number of hosts, including this one


class HostRegistry:
    """The other hosts that are connected to the controller, by the names of their nodes.

    A name belongs to one host at a time. A host that connects again, also to the next controller, keeps its name.

    Args:
        graph: The job.
        job: The name by which other hosts ask for the job.
        run_id: The id of the run.
        token: The secret that other hosts have to know; empty: none.
        known_nodes: Nodes that are expected from the start: a new host does not get one of their names.
    """

    def __init__(self, graph: RoleGraph, job: str, run_id: str, token: str, known_nodes: tuple[NodeName, ...]) -> None:
        self._graph, self._job, self._run_id, self._token = graph, job, run_id, token
        self._known_nodes = known_nodes
        self._hosts: dict[NodeName, tuple[str, asyncio.StreamWriter]] = {}  # uid and connection

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do the handshake on a new connection, and return whether it succeeded: only then the peer may send frames.

        The log gets a line with the reason if the peer is refused, sends an invalid message, or takes longer than
        HANDSHAKE_S. The caller closes the connection.
        """
        try:
            keep_alive(writer.get_extra_info("socket"))
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._shake_hands(reader, writer)
        except (msgspec.MsgspecError, OSError, RecursionError, TimeoutError) as error:
            print(f"flowdist: a connection was refused: {error!r}", file=sys.stderr)
            return False

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        handshake = ServerHandshake(self._job, self._run_id, self._token)
        for answer_to in (handshake.challenge, handshake.verify):
            body = await read_frame(reader, FRAME_MAX)
            if body is None:
                return False
            answer = answer_to(FROM_CLIENT.decode(body))
            writer.write(encode(answer))
            await writer.drain()
            if isinstance(answer, Refused):
                peer = writer.get_extra_info("peername")
                source = f"from {peer[0]} " if peer else ""
                print(f"flowdist: a connection {source}was refused: {answer.reason}", file=sys.stderr)
                return False
        return True

    def welcome(self, request: JoinRequest, job: JobState, writer: asyncio.StreamWriter) -> Welcome | Refused:
        """Register a host that asks to join under the name of its node, and return the answer to its request.

        A host that has a name keeps it, and is refused if another host has the name now. A new host gets a free name,
        and is refused if the job is ending or over; it may try again then. A host that is refused is not registered.

        Args:
            request: The host's request.
            job: The state of the job.
            writer: The connection of the host's foreground process.
        """
        if request.node:
            name = request.node
            if name in self._hosts and self._hosts[name][0] != request.uid:
                return Refused(f"another host has become {name} in the meantime", "start the command here again")
        elif job.outcome is not None or job.ending is not None:
            return Refused(f"job {self._job!r} is ending there", "start the command again on every host", retry=True)
        else:
            name = self._free_name(request.host, job)
        self._hosts[name] = (request.uid, writer)
        known = job.nodes.get(name)
        first = 1 if known is None else (known.incarnation // INCARNATIONS + 1) * INCARNATIONS + 1
        number = job.node_order.get(name, len(job.node_order) + list(self._hosts).index(name))
        return Welcome(name, number, first, self._run_id, self._graph, self._known_nodes)

    def connection_of(self, name: NodeName) -> asyncio.StreamWriter | None:
        """Return the connection to the foreground process of the node's host; None if that is not connected."""
        return self._hosts[name][1] if name in self._hosts else None

    def disconnected(self, writer: asyncio.StreamWriter) -> None:
        """Remove the hosts that were registered with this connection, which has ended.

        A new host does not get the name of such a node while the job counts the node as up.
        """
        for name in [name for name, (_, connection) in self._hosts.items() if connection is writer]:
            del self._hosts[name]

    def _free_name(self, host: str, job: JobState) -> NodeName:
        base = node_name(host, {role.name for role in self._graph.roles})
        number, name = 1, base
        while name in self._hosts or name in self._known_nodes or (name in job.nodes and job.nodes[name].usable):
            number += 1
            name = f"{base}-{number}"
        return name
