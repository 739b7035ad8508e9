"""The endpoint of a job's controller, and the proof of death that a guardian on another host sends there.

The module does not import asyncio: a guardian is small, and sends its message with a blocking socket.
"""

from __future__ import annotations

import contextlib
import socket

import msgspec

from flowdist.control.protocol.ids import NodeName
from flowdist.runtime.wire.addresses import Endpoint
from flowdist.runtime.wire.framing import encode, receive_frame
from flowdist.runtime.wire.handshake import (
    FRAME_MAX,
    FROM_SERVER,
    Answer,
    ClientHandshake,
    ConnectionRejected,
    Credentials,
)

INCARNATIONS = 1000  # incarnation numbers of a node's agent for one start of its guardian
DEATH_PROOF_S = 2.0  # timeout of each socket operation of `send_death_proof`
UNACKED_MS = 10_000  # unacknowledged data ends the connection after so long


class DeathProof(msgspec.Struct, frozen=True, tag=True):
    """A guardian's proof to another host: nothing of its node runs any more, up to this incarnation (R19).

    `cause` is how its agent ended; empty: it has left in order.
    """

    node: NodeName
    incarnation: int
    cause: str


class ControllerEndpoint(msgspec.Struct, frozen=True):
    """The place where a controller listens for other hosts, and the job to ask for there."""

    host: str
    port: int
    job: str
    run: str = ""  # the id of the run to ask for; empty: any

    @property
    def address(self) -> Endpoint:
        return Endpoint(self.host, self.port)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel end the connection about 11 s after its peer has vanished, and send small frames at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKED_MS)


def send_death_proof(controller: ControllerEndpoint, credentials: Credentials, incarnation: int, cause: str) -> None:
    """Prove to a controller on another host that nothing of a node runs any more (R19): the guardian's last action.

    A failure is ignored: without the proof, the controller waits for the end of the lease. `incarnation` is the highest
    that the agent may have had; `cause` is that of the proof.
    """
    with (
        contextlib.suppress(OSError, ConnectionRejected, ValueError, RecursionError),
        socket.create_connection((controller.host, controller.port), DEATH_PROOF_S) as connection,
    ):
        client = ClientHandshake(controller.job, controller.run, credentials)
        connection.sendall(encode(client.hello))
        proof = client.answer(_receive_answer(connection))
        with _encrypted(connection, client.certificate) as channel:
            channel.sendall(encode(proof))
            client.finish(_receive_answer(channel))
            channel.sendall(encode(DeathProof(credentials.node, incarnation, cause)))
            _end(channel)


def _receive_answer(connection: socket.socket) -> Answer:
    return FROM_SERVER.decode(receive_frame(connection, FRAME_MAX) or b"")


def _encrypted(connection: socket.socket, certificate: bytes) -> socket.socket:
    """Return the connection over TLS if the controller has a certificate, else as it is."""
    if not certificate:
        return connection
    from flowdist.runtime.wire.tls import client_context  # `ssl` is large, and a guardian needs it only now

    return client_context(certificate).wrap_socket(connection)


def _end(channel: socket.socket) -> None:
    """Say that nothing more will be sent, and wait until the controller has read it all and closes the connection."""
    if hasattr(channel, "unwrap"):
        channel.unwrap()
        return
    channel.shutdown(socket.SHUT_WR)
    while channel.recv(1 << 12):
        pass
