"""Endpoints and addresses of hosts: their names, where a host listens, and at which address others reach it.

A cluster may give names to machines that boot later: an unknown name is looked up again while a host may join.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from flowdist.errors import FlowdistError, JobFailed
from flowdist.runtime.wire.interfaces import interfaces, outer_addresses

# No host has them (RFC 5737, RFC 3849): only used to look up the route, nothing is sent.
UNUSED_ADDRESSES = ("192.0.2.1", "2001:db8::1")
BACKLOG = 4096  # connections of other hosts that wait to be accepted, as after a time without a controller
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # the errors of a machine without IPv6
LOOK_UP_S = 1.0  # between two times that a name is looked up

Resolve = Callable[[str], list[str]]  # the addresses of a name, in the order of preference; none if it is unknown


class Endpoint(NamedTuple):
    """Host and port, such as `host0:29400`, `10.0.0.1:29400` or `[::1]:29400`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint_of(text: str, default_port: int) -> Endpoint:
    """Return the endpoint that HOST or HOST:PORT names; FlowdistError for another form."""
    with contextlib.suppress(ValueError):  # an IPv6 address without a port
        return Endpoint(str(ipaddress.IPv6Address(text.strip())), default_port)
    match = re.fullmatch(r"(?:\[([^\]\s]+)\]|([^:\s\[\]]*))(?::(\d{1,5}))?", text.strip())
    if match is None or int(match[3] or 0) > 65535 or not _can_be_host(match[1] or match[2]):
        raise FlowdistError(f"{text!r} is no HOST:PORT", help=f"write it like host0:{default_port}")
    return Endpoint(match[1] or match[2], int(match[3] or default_port))


def _can_be_host(name: str) -> bool:
    try:
        return bool(name) and bool(name.encode("idna"))
    except UnicodeError:
        return False


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def has_address(address: str) -> bool:
    """Return whether the IP address is one of this machine, so that a socket can be bound to it."""
    with contextlib.suppress(OSError), socket.socket(family_of(address), socket.SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


class Taken(FlowdistError):
    """Error for a port that another flowdist process of this machine has reserved."""


def reserve(address: str, port: int) -> socket.socket:
    """Reserve a port among the flowdist processes of this network namespace, and check that it can be bound.

    The port stays unbound, for the controller. The socket that is returned holds the reservation. An empty address is
    all, of both families. Raises Taken if another flowdist process has the port, and FlowdistError if another program
    uses it, or it cannot be reserved.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0flowdist-{address}-{port}")
        doors = open_doors([address] if address else [], port)
    except FlowdistError:
        lock.close()
        raise
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            help = "take another port, the same on every host"
            raise Taken(f"port {port} of this machine is taken by another flowdist", help=help) from None
        raise FlowdistError(f"port {port} cannot be reserved: {error.strerror or error}") from None
    for door in doors:
        door.close()
    return lock


def open_doors(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Open a socket that listens for other hosts at each address; no addresses: all, of both families.

    The foreground process keeps them open during a run: no other program gets the port while a controller is replaced,
    and hosts that connect meanwhile wait for the next one. FlowdistError if the port cannot be bound.
    """
    doors: list[socket.socket] = []
    for address in addresses or ("0.0.0.0", "::"):
        try:
            doors.append(socket.create_server((address, port), family=family_of(address), backlog=BACKLOG))
        except OSError as error:
            if doors and not addresses and error.errno in NO_IPV6:
                continue
            for door in doors:
                door.close()
            message = f"{Endpoint(address, port)} cannot be bound: {why_unbound(error)}"
            raise FlowdistError(message, help="use another port, on every host") from None
    return doors


def why_unbound(error: OSError) -> str:
    """Return why `socket.create_server` has failed, without the address, which Python's own text has as well."""
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()  # a name look-up has -2


def reserve_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Reserve a port at several addresses as `reserve` does, or at none of them; no addresses: all of this machine."""
    with contextlib.ExitStack() as stack:
        locks = [stack.enter_context(reserve(address, port)) for address in addresses or ("",)]
        stack.pop_all()
    return locks


def addresses_of(host: str) -> list[str]:
    """Return the IP addresses of a host name, in the order in which they are to be tried; none if it is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def address_of(host: str, resolve: Resolve = addresses_of) -> str:
    """Return the first IP address of a host name; FlowdistError if the name is unknown."""
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
    """Wait until a host name is known, and return what is left of the timeout, in seconds; else JobFailed.

    `warn` gets one line if the name is not known at once.
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


def listening_address(host: str) -> str:
    """Return the first of the `listening_addresses`; empty: all addresses of this machine."""
    return next(iter(listening_addresses(host)), "")


def listening_addresses(host: str, resolve: Resolve = addresses_of) -> tuple[str, ...]:
    """Return the addresses to bind for an endpoint at `host`, IPv4 first; none: all addresses of this machine.

    A name gives the addresses of this machine that it stands for. If those are loopback, to which /etc/hosts of many
    machines maps the machine's own name, all are bound: other hosts may know the name by another address.
    """
    if host in ("0.0.0.0", "::"):
        return ()
    if is_address(host):
        return (str(ipaddress.ip_address(host)),)
    ours = sorted(filter(has_address, resolve(host)), key=lambda address: ":" in address)
    if host == "localhost":
        return tuple(ours) or ("127.0.0.1",)
    return tuple(address for address in ours if not ipaddress.ip_address(address).is_loopback)


def reachable_address(bound: str, endpoint: str = "") -> str:
    """Return the address at which other hosts reach this host, whose sockets are bound to `bound`; empty: to all.

    Then it is the source address of outgoing packets, else the first address of an interface, else 127.0.0.1. For the
    endpoint `::` an IPv6 address is preferred.
    """
    if bound:
        return bound
    routes = [_source_of(address) for address in UNUSED_ADDRESSES]
    found = [*filter(None, routes), *outer_addresses()]
    if endpoint == "::":
        found.sort(key=lambda address: ":" not in address)
    return found[0] if found else "127.0.0.1"


def _source_of(target: str) -> str:
    """Return the source address of packets to another address; empty if there is no route. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(family_of(target), socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))
        return str(probe.getsockname()[0])
    return ""


def interface_of(address: str) -> str:
    """Return the name of the interface that has the IP address, `lo` for all of 127/8; empty if none is found."""
    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    return next((name for name, addresses in interfaces().items() if address in addresses), "")
