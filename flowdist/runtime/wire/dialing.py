"""Connections to a controller on another host: TCP, the handshake, TLS, then the frames of the control channel."""

from __future__ import annotations

import asyncio

import msgspec

from flowdist.runtime.wire.endpoint import ControllerEndpoint, keep_alive
from flowdist.runtime.wire.framing import encode, read_frame
from flowdist.runtime.wire.handshake import (
    FRAME_MAX,
    FROM_SERVER,
    HANDSHAKE_S,
    Answer,
    ClientHandshake,
    ConnectionRejected,
    Credentials,
    Refused,
)
from flowdist.runtime.wire.tls import client_context, encrypt

CONNECT_S = 3.0  # a host that is up accepts or refuses a connection at once


async def dial(
    controller: ControllerEndpoint, credentials: Credentials
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the controller, do the handshake, and return a connection that is ready for frames.

    OSError if nothing listens there, or answers in time; ConnectionRejected for another peer, or if this host is
    refused.
    """
    connecting = asyncio.open_connection(controller.host, controller.port)
    reader, writer = await asyncio.wait_for(connecting, CONNECT_S)
    try:
        keep_alive(writer.get_extra_info("socket"))
        await asyncio.wait_for(_shake_hands(controller, credentials, reader, writer), HANDSHAKE_S)
    except BaseException:
        writer.transport.abort()  # close() would wait for the peer, and the caller's event loop may end before
        raise
    return reader, writer


async def _shake_hands(
    controller: ControllerEndpoint, credentials: Credentials, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    client = ClientHandshake(controller.job, controller.run, credentials)
    writer.write(encode(client.hello))
    proof = client.answer(await _read_answer(reader, controller))
    if client.certificate:
        await encrypt(writer, client_context(client.certificate))
    writer.write(encode(proof))
    client.finish(await _read_answer(reader, controller))


def is_encrypted(writer: asyncio.StreamWriter) -> bool:
    """Return whether the frames of a connection that `dial` has made are encrypted and authenticated by TLS."""
    return writer.get_extra_info("sslcontext") is not None


async def _read_answer(reader: asyncio.StreamReader, controller: ControllerEndpoint) -> Answer:
    """Wait for the server's next message of the handshake; ConnectionRejected if the peer is no flowdist."""
    body = await read_frame(reader, FRAME_MAX)
    if body is None:
        raise ConnectionResetError(f"{controller.address} closed the connection during the handshake")
    try:
        return FROM_SERVER.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        message = f"what listens at {controller.address} is no flowdist"
        raise ConnectionRejected(Refused(message, "another program has the port: use another one")) from None
