"""Joining the job of another host: connecting to its controller until it answers, and connecting again later."""

from __future__ import annotations

import asyncio
import uuid
from errno import ECONNREFUSED
from typing import NamedTuple

import msgspec

from flowdist.errors import JobFailed
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import JoinRequest, Welcome, encode, read_from_controller
from flowdist.runtime.wire.handshake import HANDSHAKE_S, ConnectionRejected, Refused

RETRY_S = 0.2  # between two attempts to connect
REPORT_S = 5.0  # until the first message that no controller answers; later ones come half as often


class Connection(NamedTuple):
    """A connection to the controller."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def own_address(self) -> str:
        """The address by which the controller's host reaches this one."""
        return str(self.writer.get_extra_info("sockname")[0])


class Joined(NamedTuple):
    """A place in the job. `controller` is its endpoint for this run; `uid` is that of this host."""

    connection: Connection
    controller: ControllerEndpoint
    welcome: Welcome
    uid: str


async def join_job(controller: ControllerEndpoint, token: str, host: str, timeout_s: float, show: Show) -> Joined:
    """Connect to the controller and join its job, trying again until it answers.

    Args:
        controller: Where the controller listens, and for which job.
        token: The token of the job.
        host: The name of this host, from which the controller makes the name of its node.
        timeout_s: How long to try.
        show: Prints a line on the terminal.

    Raises:
        JobFailed: No controller answered in that time.
        ConnectionRejected: The controller refuses this host, or the peer is no controller.
    """
    loop = asyncio.get_running_loop()
    until, report_at = loop.time() + timeout_s, loop.time() + REPORT_S
    uid = uuid.uuid4().hex
    while True:
        try:
            connection = Connection(*await dial(controller, token))
            welcome = await _request(connection, JoinRequest(host, uid))
            # From now on connect to the address that answered: a name may have several, of which only one is right.
            address = str(connection.writer.get_extra_info("peername")[0])
            found = msgspec.structs.replace(controller, host=address, run=welcome.run_id)
            return Joined(connection, found, welcome, uid)
        except ConnectionRejected as error:
            if not error.retry:
                raise
            why = error.message
        except (OSError, TimeoutError) as error:
            why = _reason(error)
        if loop.time() > until:
            raise JobFailed(
                f"no controller has answered at {controller.address} for {timeout_s:g} s: {why}",
                help=f"start the same command on {controller.host}, check that its port {controller.port} can be "
                "reached from here, and that every host names the same endpoint",
            )
        if loop.time() > report_at:
            left_s = until - loop.time()
            show("warning", f"no controller at {controller.address} yet ({why}); trying for another {left_s:.0f} s")
            report_at += REPORT_S * 2
        await asyncio.sleep(RETRY_S)


async def rejoin(joined: Joined, token: str, timeout_ns: int) -> Connection:
    """Connect to a controller again, after the connection was lost, and keep the name of the node (R21).

    Raises:
        TimeoutError: No controller answered for `timeout_ns`. The text is the last reason, or empty.
        ConnectionRejected: The controller refuses this host.
    """
    until = boot_ns() + timeout_ns
    why = ""
    while boot_ns() < until:
        try:
            connection = Connection(*await dial(joined.controller, token))
            await _request(connection, JoinRequest("", joined.uid, joined.welcome.node))
            return connection
        except ConnectionRejected as error:
            if not error.retry:
                raise
        except (OSError, TimeoutError) as error:
            why = _reason(error)
        await asyncio.sleep(RETRY_S)
    raise TimeoutError(why)


async def _request(connection: Connection, request: JoinRequest) -> Welcome:
    """Send the request and return the controller's answer.

    Raises:
        OSError: The connection ended before the answer.
        ConnectionRejected: The controller refuses this host, or its answer is invalid.
    """
    connection.writer.write(encode(request))
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            answer = await read_from_controller(connection.reader)
    except msgspec.MsgspecError as error:
        raise ConnectionRejected(Refused(f"the controller's answer is invalid: {error}")) from None
    if isinstance(answer, Welcome):
        return answer
    connection.writer.close()
    if isinstance(answer, Refused):
        raise ConnectionRejected(answer)
    raise ConnectionResetError("connection closed")


def _reason(error: OSError) -> str:
    """Return an error in words: `connection refused`, `no answer`."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError) or f"[Errno {ECONNREFUSED}]" in str(error):  # of several addresses
        return "connection refused"
    return (error.strerror or str(error)).lower()
