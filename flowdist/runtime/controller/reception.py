"""The controller's door for other hosts: who may come in, and how their nodes are called."""

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
from flowdist.runtime.wire.frames import JoinRequest, Welcome, read_frame
from flowdist.runtime.wire.handshake import CALLED, FRAME_MAX, PATIENCE_S, Accepted, Refused, ServerHandshake, encode

NAME_MAX = 50


def node_name(host: str, roles: set[str]) -> NodeName:
    """The first part of a host's name, as far as it can name a node: `gpu07.cluster` is gpu07."""
    name = re.sub(r"[^a-z0-9]+", "-", host.lower().partition(".")[0]).strip("-")[:NAME_MAX]
    name = name if re.match(r"[a-z]", name) else f"host-{name}".rstrip("-")
    return f"{name}-host" if name in roles | {"all", "controller"} else name


class Listening(msgspec.Struct, frozen=True):
    """Where the controller listens for other hosts, and for which job. An empty address: every one of this machine."""

    door: RunEndpoint
    address: str
    port: int
    hosts: int  # that are expected, this one included


class Reception:
    """Names are given once: a host that comes again after the controller did keeps its own."""

    def __init__(self, graph: RoleGraph, job: str, run_id: str, token: str, known_nodes: tuple[NodeName, ...]) -> None:
        self._graph, self._job, self._run_id, self._token = graph, job, run_id, token
        self._known_nodes = known_nodes
        self._hosts: dict[NodeName, tuple[str, asyncio.StreamWriter]] = {}  # that are connected: their uid

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """The handshake. False: whoever it was is none of us, and has been told so if it speaks our language."""
        try:
            keep_alive(writer.get_extra_info("socket"))
            async with asyncio.timeout(PATIENCE_S):
                return await self._greet(reader, writer)
        except (msgspec.MsgspecError, OSError, RecursionError, TimeoutError) as error:
            print(f"flowdist: a caller was not let in: {error!r}", file=sys.stderr)
            return False

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        porter = ServerHandshake(self._job, self._run_id, self._token)
        for judge in (porter.challenge, porter.judge):
            body = await read_frame(reader, FRAME_MAX)
            if body is None:
                return False
            answer = judge(CALLED.decode(body))
            writer.write(encode(answer))
            await writer.drain()
            if isinstance(answer, Refused):
                peer = writer.get_extra_info("peername")
                print(f"flowdist: {peer[0] if peer else 'a caller'} was not let in: {answer.reason}", file=sys.stderr)
                return False
        return isinstance(answer, Accepted)

    def welcome(self, message: JoinRequest, job: JobState, writer: asyncio.StreamWriter) -> Welcome | Refused:
        """A name for the node, unless the job is over."""
        if message.node:
            name = message.node
            if name in self._hosts and self._hosts[name][0] != message.uid:
                return Refused(f"another host has become {name} in the meantime", "start the command here again")
        elif job.outcome is not None or job.ending is not None:
            return Refused(f"job {self._job!r} is about to end there", "start it anew on every host", again=True)
        else:
            name = self._name(message.host, job)
        self._hosts[name] = (message.uid, writer)
        known = job.nodes.get(name)
        first = 1 if known is None else (known.incarnation // INCARNATIONS + 1) * INCARNATIONS + 1
        number = job.node_order.get(name, len(job.node_order) + list(self._hosts).index(name))
        return Welcome(name, number, first, self._run_id, self._graph, self._known_nodes)

    def link_of(self, name: NodeName) -> asyncio.StreamWriter | None:
        """To the command of its host, if that is connected."""
        return self._hosts[name][1] if name in self._hosts else None

    def depart(self, writer: asyncio.StreamWriter) -> None:
        """A connection has ended: the name that it held is free, unless its node still counts as up."""
        for name in [name for name, (_, held) in self._hosts.items() if held is writer]:
            del self._hosts[name]

    def _name(self, host: str, job: JobState) -> NodeName:
        base = node_name(host, {role.name for role in self._graph.roles})
        number, name = 1, base
        while name in self._hosts or name in self._known_nodes or (name in job.nodes and job.nodes[name].usable):
            number += 1
            name = f"{base}-{number}"
        return name
