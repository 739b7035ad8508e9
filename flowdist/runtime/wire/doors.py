"""The sockets that listen for other hosts: the foreground process has them open from the start to the end of a run.

So no other program gets the port while a controller is replaced, and hosts that connect meanwhile wait for the next
one.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from flowdist.errors import FlowdistError
from flowdist.runtime.wire.addresses import Endpoint, family_of, why_unbound

BACKLOG = 4096  # connections of other hosts that wait to be accepted, as after a time without a controller
ALL = ("0.0.0.0", "::")
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)  # the errors of a machine without IPv6


def open_doors(addresses: Sequence[str], port: int) -> list[socket.socket]:
    """Open the sockets that listen for other hosts, one for each address.

    Args:
        addresses: The IP addresses to bind; none: all addresses of this machine, of both families.
        port: The TCP port.

    Raises:
        FlowdistError: The port cannot be bound.
    """
    doors: list[socket.socket] = []
    for address in addresses or ALL:
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
