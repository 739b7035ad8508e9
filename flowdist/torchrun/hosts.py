"""Whether a name or an address is this machine's."""

from __future__ import annotations

import contextlib
import ipaddress
import socket


def host_of(endpoint: str) -> str:
    """`head:29500` -> `head`; `[::1]:29500` -> `::1`."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    return endpoint.partition(":")[0] if endpoint.count(":") == 1 else endpoint


def is_this_machine(host: str) -> bool:
    """By its names, and by whether it has the address; a name is looked up only if it is no known one."""
    if host in ("", "localhost", "0.0.0.0", "::", socket.gethostname()):
        return True
    try:
        return _has(str(ipaddress.ip_address(host)))
    except ValueError:
        pass
    with contextlib.suppress(OSError, UnicodeError):
        return any(_has(str(found[4][0])) for found in socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM))
    return False


def _has(address: str) -> bool:
    """Only the addresses of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.bind((address, 0))
        return True
    return False
