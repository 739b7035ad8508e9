"""Host names: the addresses for which they stand, and waiting for one that is not known yet.

The name of a host may become known later than the host's own processes start, as with the names that a cluster gives
to machines that boot. So a name that is unknown is looked up again, as long as a host may try to join.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable

from flowdist.errors import FlowdistError, JobFailed

LOOK_UP_S = 1.0  # between two times that a name is looked up

Resolve = Callable[[str], list[str]]  # the addresses of a name, in the order of preference; none if it is unknown


def addresses_of(host: str) -> list[str]:
    """Return the IP addresses of a host name, in the order in which they are to be tried; none if it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def address_of(host: str, resolve: Resolve = addresses_of) -> str:
    """Return the first IP address of a host name.

    Raises:
        FlowdistError: The name is unknown.
    """
    if found := resolve(host):
        return found[0]
    raise FlowdistError(f"host name {host!r} is unknown", help="write an address, such as 10.0.0.1")


def is_address(host: str) -> bool:
    """Return whether the text is an IP address."""
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host))
    return False


def wait_for_name(
    host: str,
    timeout_s: float,
    warn: Callable[[str], None],
    resolve: Resolve = addresses_of,
    pause_s: float = LOOK_UP_S,
) -> float:
    """Wait until a host name is known, and return what is left of the timeout, in seconds. An address is known.

    Args:
        host: The name.
        timeout_s: How long to wait, in seconds.
        warn: Gets one line if the name is not known at once.
        resolve: Looks a name up.
        pause_s: The time between two times that the name is looked up, in seconds.

    Raises:
        JobFailed: The name is still unknown after `timeout_s`.
    """
    until = time.monotonic() + timeout_s
    is_known_at_once = True
    while not is_address(host) and not resolve(host):
        if time.monotonic() >= until:
            raise JobFailed(
                f"host name {host!r} has not become known here for {timeout_s:g} s",
                help="check its spelling, /etc/hosts and the name server, or write an address such as 10.0.0.1",
            )
        if is_known_at_once:
            warn(f"host name {host!r} is not known here yet; looking it up for another {timeout_s:.0f} s")
        is_known_at_once = False
        time.sleep(min(pause_s, max(0.0, until - time.monotonic())))
    return timeout_s if is_known_at_once else max(0.0, round(until - time.monotonic(), 1))
