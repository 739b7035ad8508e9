"""Addresses of hosts: where a host listens, at which address others reach it, and which interface has that address."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import re
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from flowdist.errors import FlowdistError

SIOCGIFADDR = 0x8915  # netdevice(7)
UNUSED_ADDRESS = "192.0.2.1"  # no host has it (RFC 5737): only used to look up the route, nothing is sent


class Endpoint(NamedTuple):
    """Host and port, such as `host0:29400`, `10.0.0.1:29400` or `[::1]:29400`."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def endpoint_of(text: str, default_port: int) -> Endpoint:
    """Return the endpoint that a text of the form HOST or HOST:PORT names. Without a port it has `default_port`.

    Raises:
        FlowdistError: The text has another form.
    """
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


def address_of(host: str) -> str:
    """Return the IP address of a host name.

    Raises:
        FlowdistError: The name is unknown.
    """
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        raise FlowdistError(f"host name {host!r} is unknown", help="write an address, such as 10.0.0.1") from None


def reserve(address: str, port: int) -> socket.socket | None:
    """Reserve a port among the flowdist processes of this network namespace, and check that it can be bound.

    The port itself stays unbound, for the controller.

    Args:
        address: The IP address to bind; empty: all addresses of this machine.
        port: The TCP port.

    Returns:
        A socket that holds the reservation until it is closed or this process ends; None if another flowdist process
        has reserved the port.

    Raises:
        FlowdistError: Another program uses the port, or it cannot be bound.
    """
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind(f"\0flowdist-{address}-{port}")
    except OSError:
        lock.close()
        return None
    try:
        with socket.create_server((address, port), family=family_of(address)):
            return lock
    except OSError as error:
        lock.close()
        place = Endpoint(address or "0.0.0.0", port)
        message = f"{place} cannot be bound: {(error.strerror or str(error)).lower()}"
        raise FlowdistError(message, help="use another port, on every host") from None


def listening_address(host: str) -> str:
    """Return the address to bind for an endpoint at `host`; empty: all addresses of this machine.

    An IP address stays as it is, but 0.0.0.0 and :: mean all addresses. A name gives the address of this machine that
    it stands for. If that is loopback, to which /etc/hosts of many machines maps the machine's own name, or if there is
    none, the result is empty: other hosts may know the name by another address. `localhost` gives loopback.
    """
    if host in ("0.0.0.0", "::"):
        return ""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    found: list[str] = []
    with contextlib.suppress(OSError, UnicodeError):
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    ours = sorted(filter(has_address, found), key=lambda address: ":" in address)
    if host == "localhost":
        return ours[0] if ours else "127.0.0.1"
    return next((address for address in ours if not ipaddress.ip_address(address).is_loopback), "")


def reachable_address(bound: str) -> str:
    """Return the address at which other hosts reach this host.

    Args:
        bound: The address to which this host binds its sockets; empty: all addresses of this machine.

    Returns:
        `bound`; if that is empty, the source address of outgoing packets, or 127.0.0.1 if there is no route.
    """
    if bound:
        return bound
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((UNUSED_ADDRESS, 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def interface_of(address: str) -> str:
    """Return the name of the network interface that has the IP address; empty if none is found."""
    parsed = ipaddress.ip_address(address)
    if parsed.is_loopback:
        return "lo"
    if parsed.version == 6:
        with contextlib.suppress(OSError):
            for line in Path("/proc/net/if_inet6").read_text().splitlines():
                fields = line.split()
                if fields[0] == parsed.exploded.replace(":", ""):
                    return fields[-1]
        return ""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # the interface has no IPv4 address
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
