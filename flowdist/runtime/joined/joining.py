"""Joining the job of another host: connecting to its controller until it answers, and connecting again later."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from errno import ECONNREFUSED
from typing import NamedTuple

import msgspec

from flowdist.errors import JobFailed
from flowdist.runtime.clock import boot_ns
from flowdist.runtime.supervisor.event_printer import Show
from flowdist.runtime.wire.dialing import dial
from flowdist.runtime.wire.endpoint import ControllerEndpoint
from flowdist.runtime.wire.frames import JoinRequest, Welcome, encode, read_from_controller
from flowdist.runtime.wire.handshake import HANDSHAKE_S, ConnectionRejected, Credentials, Refused

RETRY_S = 0.2  # between two attempts to connect
REFUSED = "connection refused"  # nothing listens there
REPORT_S = 5.0  # until the first message that no controller answers; later ones come half as often


class Connection(NamedTuple):
    """A connection to the controller that is ready for frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def own_address(self) -> str:
        """The address by which the controller's host reaches this one."""
        return str(self.writer.get_extra_info("sockname")[0])


class JobClock:
    """The time of the job on a host that has joined, in ns: the lines of all hosts have the times of one clock."""

    def __init__(self, now_ns: int) -> None:
        self.set(now_ns)

    def set(self, now_ns: int) -> None:
        """Set the clock: a run that was resumed goes on from where its journal ends."""
        self._began_ns = boot_ns() - now_ns

    def now_ns(self) -> int:
        """Return the time of the job, in ns. It is late by the time that the controller's message took."""
        return boot_ns() - self._began_ns


class Joined(NamedTuple):
    """The place of this host in the job of another: every process here shows the same `credentials`.

    `controller` is the endpoint of the run at the address that has answered.
    """

    connection: Connection
    controller: ControllerEndpoint
    welcome: Welcome
    credentials: Credentials
    clock: JobClock


async def join_job(
    controller: ControllerEndpoint,
    token: str,
    request: JoinRequest,
    timeout_s: float,
    show: Show,
    over_here: Callable[[], str] = str,
) -> Joined:
    """Connect to the controller and join its job, trying again until it answers.

    With a token, only a refusal that the controller has proven to be its own ends this at once (ConnectionRejected).
    Any other may be that of anybody on the network: it is shown, and raised only if it still comes after `timeout_s`.
    JobFailed if none has answered until then, or each has said to try again. `over_here` returns which run of this
    machine that listened there is over, in words.
    """
    loop = asyncio.get_running_loop()
    until, report_at = loop.time() + timeout_s, loop.time() + REPORT_S
    refusal: ConnectionRejected | None  # the answer to the last attempt, if nothing has proven it
    is_first = True  # no such refusal was shown: the first one is shown at once
    credentials = Credentials(token, "", secrets.token_hex(16))
    over = ""
    while True:
        try:
            connection, welcome = await _join(controller, credentials, request)
            # From now on connect to the address that answered: a name may have several, of which only one is right.
            address = str(connection.writer.get_extra_info("peername")[0])
            found = msgspec.structs.replace(controller, host=address, run=welcome.run_id)
            clock = JobClock(welcome.now_ns)
            return Joined(connection, found, welcome, credentials._replace(node=welcome.node), clock)
        except ConnectionRejected as error:
            if not error.retry and (error.is_proven or not token):
                raise
            why, refusal = error.message, None if error.retry else error
        except (OSError, TimeoutError) as error:
            why, refusal = _reason(error), None
            if why == REFUSED and not over and (over := over_here()):
                show("warning", f"{over}; this host waits for another run there")
        if loop.time() > until:
            raise refusal or _unanswered(controller, timeout_s, over or why)
        if loop.time() > report_at or (refusal is not None and is_first):
            left_s = until - loop.time()
            show("warning", f"no controller at {controller.address} yet ({why}); trying for another {left_s:.0f} s")
            report_at, is_first = loop.time() + REPORT_S * 2, is_first and refusal is None
        await asyncio.sleep(RETRY_S)


def _unanswered(controller: ControllerEndpoint, timeout_s: float, why: str) -> JobFailed:
    return JobFailed(
        f"no controller has answered at {controller.address} for {timeout_s:g} s: {why}",
        help=f"start the same command on {controller.host}, check that its port {controller.port} can be reached from "
        "here, and that every host names the same endpoint",
    )


async def rejoin(joined: Joined, request: JoinRequest, timeout_ns: int) -> Connection:
    """Connect to the controller again, or to the next one, after the connection was lost (R21); set the clock.

    TimeoutError, with the last reason, if none has answered for `timeout_ns`; ConnectionRejected if the controller, and
    nothing in its place, refuses this host for good.
    """
    until = boot_ns() + timeout_ns
    why = ""
    while boot_ns() < until:
        try:
            connection, welcome = await _join(joined.controller, joined.credentials, request)
            joined.clock.set(welcome.now_ns)
            return connection
        except ConnectionRejected as error:
            if error.is_proven and not error.retry:
                raise
            why = error.message  # without a proof, it may be anybody between here and the controller
        except (OSError, TimeoutError) as error:
            why = _reason(error)
        await asyncio.sleep(RETRY_S)
    raise TimeoutError(why)


async def _join(
    controller: ControllerEndpoint, credentials: Credentials, request: JoinRequest
) -> tuple[Connection, Welcome]:
    """Connect to the controller and ask to join; OSError without an answer, ConnectionRejected if it refuses.

    A connection without a Welcome is closed: the controller would take it for the present one of its node.
    """
    connection = Connection(*await dial(controller, credentials))
    try:
        connection.writer.write(encode(request))
        async with asyncio.timeout(HANDSHAKE_S):
            answer = await read_from_controller(connection.reader)
        if isinstance(answer, Welcome):
            return connection, answer
        if isinstance(answer, Refused):
            raise ConnectionRejected(answer, is_proven=True)
        raise ConnectionResetError("connection closed")
    except BaseException as error:
        connection.writer.transport.abort()
        if not isinstance(error, msgspec.MsgspecError):
            raise
        raise ConnectionRejected(Refused(f"the controller's answer is invalid: {error}"), is_proven=True) from None


def _reason(error: OSError) -> str:
    """Return an error of a connection in words for the user, such as `connection refused` or `no answer`."""
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, ConnectionRefusedError) or f"[Errno {ECONNREFUSED}]" in str(error):  # of several addresses
        return REFUSED
    return (error.strerror or str(error)).lower()
