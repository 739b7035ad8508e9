"""Hosts of endpoints, and whether one of them is this machine."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

from flowdist.runtime.wire.addresses import has_address


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint: `head` of `head:29500`, `::1` of `[::1]:29500`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def is_this_machine(host: str) -> bool:
    """Return whether the host is a name or an address of this machine; unknown names are looked up by DNS."""
    if host in ("", "localhost", "0.0.0.0", "::", socket.gethostname()):
        return True
    try:
        return has_address(str(ipaddress.ip_address(host)))
    except ValueError:
        pass
    with contextlib.suppress(OSError, UnicodeError):
        return any(has_address(str(found[4][0])) for found in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
    return False
