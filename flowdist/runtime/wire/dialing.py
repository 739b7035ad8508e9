"""Connections to a controller on another host: TCP, the handshake, then the frames of the control channel."""

from __future__ import annotations

import asyncio

import msgspec

from flowdist.runtime.wire.endpoint import Meeting, keep_alive
from flowdist.runtime.wire.frames import read_frame
from flowdist.runtime.wire.handshake import (
    CALLING,
    FRAME_MAX,
    PATIENCE_S,
    Accepted,
    Answer,
    ClientHandshake,
    Refused,
    TurnedAway,
    encode,
)

CONNECT_S = 3.0  # a host that is up answers at once, with yes or no


async def dial(meeting: Meeting, token: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which frames may be sent.

    Raises:
        OSError: nobody listens there, or nobody is there.
        TurnedAway: it is not the controller of this job, or it does not want us.
    """
    connecting = asyncio.open_connection(meeting.host, meeting.port)
    reader, writer = await asyncio.wait_for(connecting, CONNECT_S)
    try:
        keep_alive(writer.get_extra_info("socket"))
        await asyncio.wait_for(_greet(meeting, token, reader, writer), PATIENCE_S)
    except BaseException:
        writer.close()
        raise
    return reader, writer


async def _greet(meeting: Meeting, token: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    caller = ClientHandshake(meeting.job, meeting.run, token)
    writer.write(encode(caller.hello))
    proof = caller.answer(_answer(await read_frame(reader, FRAME_MAX), meeting))
    writer.write(encode(proof))
    last = _answer(await read_frame(reader, FRAME_MAX), meeting)
    if not isinstance(last, Accepted):
        caller.answer(last)


def _answer(body: bytes | None, meeting: Meeting) -> Answer:
    """TurnedAway when what listens there speaks another language; OSError when it has hung up."""
    if body is None:
        raise ConnectionResetError(f"{meeting.endpoint} hung up in the middle of the greeting")
    try:
        answer: Answer = CALLING.decode(body)
    except msgspec.MsgspecError:
        message = f"what listens at {meeting.endpoint} is no flowdist"
        raise TurnedAway(Refused(message, "another program has the port: take another one")) from None
    return answer
