"""Ports of replicas: chosen at the first start of a replica on a node, and kept for its later attempts there.

Each node has a share of the range below the kernel's ephemeral ports (32768 and up). While a replica restarts, neither
an outgoing connection nor another node of the run takes its port.
"""

from __future__ import annotations

import socket
import zlib

from flowdist.graph.units import PORTS_MAX
from flowdist.runtime.wire.addresses import family_of

FIRST, SHARES = 15_000, 270  # first port, number of shares; each share has PORTS_MAX ports


class Ports:
    """The ports of one node's share, and the replicas that they were given to.

    `seed` differs from run to run (the run's id), so that runs on one machine rarely use the same share.
    """

    def __init__(self, seed: str, number: int, address: str = "127.0.0.1") -> None:
        self._address = address
        share = (zlib.crc32(seed.encode()) + number) % SHARES
        self._range = range(FIRST + share * PORTS_MAX, FIRST + (share + 1) * PORTS_MAX)
        self._taken: dict[tuple[str, str], int] = {}

    def of(self, replica: str, names: tuple[str, ...]) -> dict[str, int]:
        """Return the port of each name for a replica: that of an earlier call, else one that is free now.

        The replica has to bind it itself: no socket is kept. OSError if no port of the share is free.
        """
        for name in names:
            if (replica, name) not in self._taken:
                self._taken[replica, name] = self._choose()
        return {name: self._taken[replica, name] for name in names}

    def _choose(self) -> int:
        for port in self._range:
            if port not in self._taken.values() and _is_free(self._address, port):
                return port
        raise OSError(f"all {PORTS_MAX} ports of the node are taken ({self._range[0]} to {self._range[-1]})")


def _is_free(address: str, port: int) -> bool:
    with socket.socket(family_of(address)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
