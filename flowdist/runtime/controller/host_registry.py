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
    """Return a node name for a host: the first part of the host's name, as far as that can name a node.

    The host `gpu07.cluster` becomes the node `gpu07`. A name that a role has, or that fault plans reserve, gets the
    suffix `-host`.
    """
    name = re.sub(r"[^a-z0-9]+", "-", host.lower().partition(".")[0]).strip("-")[:NAME_MAX]
    name = name if re.match(r"[a-z]", name) else f"host-{name}".rstrip("-")
    return f"{name}-host" if name in roles | {"all", "controller"} else name


class Listening(msgspec.Struct, frozen=True):
    """The address at which a controller listens for other hosts; if empty, all addresses of its machine."""

    door: RunEndpoint
    address: str
    port: int
    hosts: int  # expected number of hosts, including this one


class HostRegistry:
    """The other hosts that are connected, by the names of their nodes.

    A name belongs to one host at a time. A host that connects again, also to the next controller, keeps its name.
    """

    def __init__(self, graph: RoleGraph, job: str, run_id: str, token: str, known_nodes: tuple[NodeName, ...]) -> None:
        self._graph, self._job, self._run_id, self._token = graph, job, run_id, token
        self._known_nodes = known_nodes
        self._hosts: dict[NodeName, tuple[str, asyncio.StreamWriter]] = {}  # uid and connection

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do the handshake and return whether the peer may send frames. The log tells why one is refused."""
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
        """Register the host under a name and return the answer to its request; refuse it if the job is ending."""
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
        """Return the connection to the foreground process of the node's host, if it is connected."""
        return self._hosts[name][1] if name in self._hosts else None

    def disconnected(self, writer: asyncio.StreamWriter) -> None:
        """Free the names that were registered by this connection. A node that still counts as up keeps its name."""
        for name in [name for name, (_, connection) in self._hosts.items() if connection is writer]:
            del self._hosts[name]

    def _free_name(self, host: str, job: JobState) -> NodeName:
        base = node_name(host, {role.name for role in self._graph.roles})
        number, name = 1, base
        while name in self._hosts or name in self._known_nodes or (name in job.nodes and job.nodes[name].usable):
            number += 1
            name = f"{base}-{number}"
        return name
