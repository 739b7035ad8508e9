"""Messages between the spawner and the templates: tuples of plain values, each a packet of a Unix socket.

A packet is sent in whole or not at all, so that a worker may send on the socket of the template that has forked it. It
may carry one descriptor.
"""

from __future__ import annotations

import _socket
import marshal
import sys

VARIABLE = "FLOWDIST_PREFIX"  # of the prefix process: the descriptor of its link, and what it has to know
GATE = "FLOWDIST_GATE"  # of a worker: a module, a space, and what its `prepare` gets; see `template`
HIGH_FD = 700  # descriptors of flowdist in a user's process begin here: the numbers below are those that it expects
SIZE_MAX = 1 << 18  # bytes of a packet
_FD = 4  # bytes of a descriptor's number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = tuple[Any, ...]  # the first element names it; see `template` for all of them


def pair() -> tuple[Link, Link]:
    """Return the two ends of a new link."""
    one, other = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    return Link(one), Link(other)


class Link:
    """One end of a link. `end` is its socket."""

    def __init__(self, end: _socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._end.fileno()

    def detach(self) -> int:
        """Return the descriptor, and leave it to the caller: this object must not be used any more."""
        return self._end.detach()

    def close(self) -> None:
        """Close the socket."""
        self._end.close()

    def send(self, *message: Any, fd: int | None = None) -> bool:
        """Send a message, with a copy of a descriptor if one is given, and return whether it was sent.

        It was not if the other side has ended, or if the message is too large for a packet.
        """
        files = [] if fd is None else [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(_FD, sys.byteorder))]
        try:
            self._end.sendmsg([marshal.dumps(message)], files)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Message, int | None] | None:
        """Wait for a message; return it and the descriptor that came with it, or None if the other side has ended."""
        try:
            data, files, _, _ = self._end.recvmsg(SIZE_MAX, _socket.CMSG_SPACE(_FD))
        except ConnectionError:
            return None
        fds = [int.from_bytes(value[:_FD], sys.byteorder) for _, _, value in files]
        return (marshal.loads(data), fds[0] if fds else None) if data else None
