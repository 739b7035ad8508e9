"""Admission of other hosts to a job: the handshake, the names of their nodes, and the node of each connection."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import msgspec

from flowdist.control.connection.objections import INCARNATION_MAX
from flowdist.control.job.state import JobState, Node
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import RoleGraph
from flowdist.graph.units import HOSTS_MAX
from flowdist.record.reader import BadLine
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.controller.channel import Channel
from flowdist.runtime.controller.limits import NAMES_MAX
from flowdist.runtime.controller.refusals import Refusals
from flowdist.runtime.run_folder.resume import RunEndpoint
from flowdist.runtime.wire.endpoint import INCARNATIONS, keep_alive
from flowdist.runtime.wire.frames import JoinRequest, Welcome
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import (
    FRAME_MAX,
    FROM_CLIENT,
    HANDSHAKE_S,
    Answer,
    Hello,
    Proof,
    Refused,
    ServerHandshake,
)
from flowdist.runtime.wire.tls import Identity

NAME_MAX = 50  # characters of a node's name
OWNERS = "hosts.jsonl"  # in the folder of the run: a line for each node and host that it was given to, see `Owner`


def node_name(host: str, roles: set[str]) -> NodeName:
    """Return a node name made from a host's, as `gpu07` from `gpu07.cluster`.

    It gets another end if a role has the name, or fault plans reserve it (`all`, `controller`).
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
    also: tuple[str, ...] = ()  # further addresses to bind


class Owner(msgspec.Struct, frozen=True):
    """The host that a node belongs to, by the SHA-256 of its secret. Of several lines, the last one counts.

    `address` is the one from which the host has joined.
    """

    node: NodeName
    digest: str
    address: str


NOBODY = Owner("", "", "")


class HostRegistry:
    """The connections of other hosts, each with the node that it may speak for.

    A node belongs to one host at a time: the one that shows the secret with which it has joined. It keeps the node when
    it connects again, also to the next controller, for which `run_dir` keeps the owners. New hosts get no name of
    `known_nodes`. Without `tls`, nothing is encrypted.
    """

    def __init__(
        self,
        graph: RoleGraph,
        job: str,
        run_id: str,
        run_dir: Path,
        token: str,
        known_nodes: tuple[NodeName, ...],
        refusals: Refusals,
        tls: Identity | None = None,
    ) -> None:
        self._graph, self._job, self._run_id, self._token = graph, job, run_id, token
        self._known_nodes, self._refusals, self._tls = known_nodes, refusals, tls
        self._owners_file = run_dir / OWNERS
        self._owners = _read_owners(self._owners_file)
        self._shown: dict[asyncio.StreamWriter, tuple[NodeName, str]] = {}  # node and SHA-256 of the secret shown
        self._hosts: dict[NodeName, asyncio.StreamWriter] = {}  # the connection of the foreground process, by node
        self._brought: dict[NodeName, str] = {}  # by node: the address of its host, if it was new to this controller

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do the handshake on a new connection within HANDSHAKE_S; return whether the peer may send frames."""
        try:
            keep_alive(writer.get_extra_info("socket"))
            async with asyncio.timeout(HANDSHAKE_S):
                return await self._shake_hands(reader, writer)
        except (msgspec.MsgspecError, OSError, RecursionError, TimeoutError) as error:
            self._refusals.note(self.source_of(writer), repr(error))
            return False

    async def _shake_hands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        certificate = self._tls.certificate if self._tls is not None else b""
        handshake = ServerHandshake(self._job, self._run_id, self._token, certificate)
        if not await self._answer(handshake.challenge, reader, writer):
            return False
        if self._tls is not None:
            assert isinstance(writer.transport, Channel)
            await writer.transport.encrypt(self._tls.context)
        return await self._answer(lambda message: self._identify(message, handshake, writer), reader, writer)

    async def _answer(
        self,
        answer_to: Callable[[Hello | Proof], Answer],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer the peer's next message of the handshake; return False if the peer is refused, or has gone.

        This does not wait until the answer is sent: TLS has to begin here before the peer's first TLS message arrives.
        """
        body = await read_frame(reader, FRAME_MAX)
        if body is None:
            return False
        answer = answer_to(FROM_CLIENT.decode(body))
        writer.write(encode(answer))
        if isinstance(answer, Refused):
            self._refusals.note(self.source_of(writer), answer.reason)
        return not isinstance(answer, Refused)

    def _identify(self, proof: Hello | Proof, handshake: ServerHandshake, writer: asyncio.StreamWriter) -> Answer:
        """Note for which node an accepted connection may speak; refuse it if the node belongs to another host."""
        answer = handshake.verify(proof)
        if isinstance(answer, Refused) or not isinstance(proof, Proof):
            return answer
        digest = _digest(proof.secret)
        owner = self._owners.get(proof.node, NOBODY)
        if proof.node and not hmac.compare_digest(owner.digest, digest):
            return handshake.refuse(f"{proof.node!r} is a node of another host", "start the command here again")
        self._shown[writer] = (proof.node, digest)
        return answer

    def node_of(self, writer: asyncio.StreamWriter) -> NodeName:
        """Return the node that a connection may speak for; empty if its host has none, or has lost it to a new host.

        Other connections of the former host, such as its agent's, may still be open: they must not speak for the new
        one.
        """
        name, digest = self._shown.get(writer, ("", ""))
        owner = self._owners.get(name)
        return name if owner is not None and owner.digest == digest else ""

    def source_of(self, writer: asyncio.StreamWriter) -> str:
        """Return the peer of a connection in words, for the log."""
        address = address_of(writer)
        name = self.node_of(writer) or ("a host" if writer in self._shown else "a connection")
        return f"{name} from {address}" if address else "a process of this host"

    def welcome(self, request: JoinRequest, job: JobState, writer: asyncio.StreamWriter, now: int) -> Welcome | Refused:
        """Register a host that asks to join under the name of its node, or a free one, and return the answer.

        It is refused while the job is ending or over, after which it may try again, and if the job has had HOSTS_MAX
        hosts, or NAMES_MAX from the same address.
        """
        name = self.node_of(writer)
        if not name:
            if job.outcome is not None or job.ending is not None:
                return Refused(
                    f"job {self._job!r} is ending there", "start the command again on every host", retry=True
                )
            address = address_of(writer)
            name = self._free_name(request.host, address, job)
            if refused := self._too_many(name, address):
                return refused
            self._give(name, address, writer)
        self._hosts[name] = writer
        known = job.nodes.get(name)
        first = 1 if known is None else (known.incarnation // INCARNATIONS + 1) * INCARNATIONS + 1
        number = len(self._known_nodes) + list(self._owners).index(name)  # the same as long as the job lasts
        return Welcome(name, number, first, self._run_id, self._graph, now)

    def _give(self, name: NodeName, address: str, writer: asyncio.StreamWriter) -> None:
        """Make a new host the owner of a node, and keep that for the next controller, before the host learns of it."""
        _, digest = self._shown[writer]
        owner = Owner(name, digest, address)
        self._owners[name], self._shown[writer] = owner, (name, digest)
        self._brought[name] = address
        with self._owners_file.open("ab") as file:
            file.write(msgspec.json.encode(owner) + b"\n")

    def _too_many(self, name: NodeName, address: str) -> Refused | None:
        """Return the refusal of a new host from the address, if its name is a new one and there are too many."""
        if name not in self._owners and len(self._owners) >= HOSTS_MAX:
            return Refused(f"job {self._job!r} has had {HOSTS_MAX} hosts", "run the job again")
        if name not in self._brought and list(self._brought.values()).count(address) >= NAMES_MAX:
            return Refused(f"job {self._job!r} has had {NAMES_MAX} hosts from {address}", "use other hosts")
        return None

    def connection_of(self, name: NodeName) -> asyncio.StreamWriter | None:
        """Return the connection to the foreground process of the node's host; None if that is not connected."""
        return self._hosts.get(name)

    def disconnected(self, writer: asyncio.StreamWriter) -> None:
        """Forget a connection that has ended; its node's name stays taken while the job counts the node as up."""
        name, _ = self._shown.pop(writer, ("", ""))
        if self._hosts.get(name) is writer:
            del self._hosts[name]

    def _free_name(self, host: str, address: str, job: JobState) -> NodeName:
        """Return the name of the node of a new host: that of the host, with a number if another host may use it.

        A used name is free only for hosts at the same address, such as a machine that starts again. Another host of
        that name may just be out of reach, and would be refused for good if its node were given away.
        """
        base = node_name(host, {role.name for role in self._graph.roles})
        number, name = 1, base
        while (
            name in self._hosts
            or name in self._known_nodes
            or (name in self._owners and self._owners[name].address != address)
            or not _is_free(job.nodes.get(name))
        ):
            number += 1
            name = f"{base}-{number}"
        return name


def _is_free(node: Node | None) -> bool:
    """Return whether the node does not run, and its next host can still count its incarnations on."""
    return node is None or (not node.usable and node.incarnation < INCARNATION_MAX // 2)


def address_of(writer: asyncio.StreamWriter) -> str:
    """Return the address of the peer of a connection over TCP; empty for other connections."""
    peer = writer.get_extra_info("peername")
    return str(peer[0]) if peer else ""


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _read_owners(path: Path) -> dict[NodeName, Owner]:
    """Return the owners that earlier controllers of the run have kept; BadLine if a line is damaged.

    An incomplete last line, which a crash may leave, is cut off: its host has not learned of its node.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        write_atomically(path, whole)
    owners: dict[NodeName, Owner] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            owner = msgspec.json.decode(line, type=Owner)
        except msgspec.DecodeError as error:
            raise BadLine(str(path), number, f"the line is damaged: {error}") from None
        owners[owner.node] = owner
    return owners
