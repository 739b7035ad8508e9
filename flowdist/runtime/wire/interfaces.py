"""The network interfaces of this machine, with their addresses."""

from __future__ import annotations

import array
import contextlib
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

from flowdist.errors import FlowdistError

SIOCGIFCONF = 0x8912  # netdevice(7): the IPv4 addresses of all interfaces
REQUEST_BYTES = 40  # struct ifreq of a 64-bit machine: 16 bytes of name, then the address
ADDRESSES_MAX = 1024


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of each network interface, IPv4 first; a link-local IPv6 as it is used: `fe80::1%eth0`."""
    found: dict[str, list[str]] = {name: [] for _, name in socket.if_nameindex()}
    for look in (_ipv4, _ipv6):
        with contextlib.suppress(OSError):
            for name, address in look():
                found.setdefault(name, []).append(address)
    return found


def _ipv4() -> list[tuple[str, str]]:
    buffer = array.array("B", bytes(REQUEST_BYTES * ADDRESSES_MAX))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("iP", len(buffer), buffer.buffer_info()[0])
        size, _ = struct.unpack("iP", fcntl.ioctl(probe, SIOCGIFCONF, request))
    data = buffer.tobytes()[:size]
    found = []
    for at in range(0, size, REQUEST_BYTES):
        label = data[at : at + 16].partition(b"\0")[0].decode()
        found.append((label.partition(":")[0], socket.inet_ntoa(data[at + 20 : at + 24])))  # a second one: eth0:1
    return found


def _ipv6() -> list[tuple[str, str]]:
    found = []
    for line in Path("/proc/net/if_inet6").read_text().splitlines():
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(int(digits, 16))
        found.append((name, f"{address}%{name}" if address.is_link_local else str(address)))
    return found


def addresses_on(interface: str) -> list[str]:
    """Return the addresses of an interface, IPv4 first; FlowdistError if there are none, or no such interface.

    Link-local ones are left out: another host would have to name its own interface with them.
    """
    known = interfaces()
    if interface not in known:
        names = ", ".join(f"{name} ({', '.join(found) or 'no address'})" for name, found in known.items())
        raise FlowdistError(f"this machine has no interface {interface!r}", help=f"it has: {names}")
    found = [address for address in known[interface] if not ipaddress.ip_address(address).is_link_local]
    if not found:
        raise FlowdistError(f"the interface {interface} has no address", help="give it one, or name another interface")
    return found


def outer_addresses() -> list[str]:
    """Return the addresses of this machine that other hosts may reach, IPv4 first: no loopback, no link-local."""
    found = [address for addresses in interfaces().values() for address in addresses]
    parsed = [ipaddress.ip_address(address) for address in found]
    outer = [str(each) for each in parsed if not each.is_loopback and not each.is_link_local]
    return sorted(outer, key=lambda address: ":" in address)
