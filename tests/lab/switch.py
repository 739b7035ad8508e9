"""A network switch in user space, with faults: delay, loss, cuts of one direction, and ports that are down.

    python -m tests.lab.switch PORTS [SEED]          in a network namespace with the interfaces p0, p1, ...

Each line of the standard input is a JSON object with all faults that hold from then on (`Faults`); each is answered by
a line on the standard output. At the end of the input, the switch kills every process of the lab and ends: a lab whose
test was killed leaves nothing.

A kernel has this in its bridge and in netem, but many kernels lack netem, and the bridge's filters need nft. The switch
reads each frame from a packet socket and writes it to another one, with the header in which the kernel says what of
checksums and segments is still to be done: a large segment passes as one frame (packet(7), PACKET_VNET_HDR).
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import selectors
import socket
import sys
import time

from tests.lab.processes import kill_all

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL = 0x0003
VNET_HEADER = 10  # bytes of struct virtio_net_hdr
FRAME_MAX = 70_000
BUFFER = 8 << 20
AT_ONCE = 64  # frames of one port before the other ports have their turn
BROADCAST_BIT = 1


def mac_of(port: int) -> str:
    """Return the MAC address of the host at a port, from which the switch knows the port without learning it."""
    return f"02:00:00:00:{port >> 8:02x}:{port & 255:02x}"


class Faults:
    """All faults that hold, from the JSON object that the lab sends.

    Attributes:
        down: Ports that pass nothing.
        cut: Pairs of ports: nothing passes from the first to the second.
        delay_s: By port, the seconds by which each frame from and to it comes later.
        loss: By port, the share of the frames from and to it that are lost.
    """

    def __init__(self, text: str) -> None:
        order = json.loads(text)
        self.down = set(order.get("down", ()))
        self.cut = {(source, target) for source, target in order.get("cut", ())}
        self.delay_s: dict[int, float] = {int(port): seconds for port, seconds in order.get("delay_s", {}).items()}
        self.loss: dict[int, float] = {int(port): share for port, share in order.get("loss", {}).items()}
        self.namespaces: list[int] = order.get("namespaces", [])

    def passes(self, source: int, target: int, chance: random.Random) -> bool:
        """Return whether a frame from one port to another arrives at all."""
        if source in self.down or target in self.down or (source, target) in self.cut:
            return False
        shares = [share for port in (source, target) if (share := self.loss.get(port, 0.0))]
        return all(chance.random() >= share for share in shares)

    def delay(self, source: int, target: int) -> float:
        """Return after how many seconds a frame from one port to another arrives."""
        return self.delay_s.get(source, 0.0) + self.delay_s.get(target, 0.0)


class Switch:
    """The switch of a lab.

    Args:
        ports: The number of hosts. Port 0 is the interface p0.
        seed: Seed of the loss.
    """

    def __init__(self, ports: int, seed: int) -> None:
        self._ports = [_packet_socket(f"p{port}") for port in range(ports)]
        self._chance = random.Random(seed)
        self._faults = Faults("{}")
        self._late: list[tuple[float, int, int, bytes]] = []  # arrival, order of coming, port, frame
        self._count = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        for port, link in enumerate(self._ports):
            self._selector.register(link, selectors.EVENT_READ, port)

    def run(self) -> None:
        """Pass frames on until the standard input ends, then kill what is left of the lab."""
        print("up", flush=True)
        while True:
            now = time.monotonic()
            while self._late and self._late[0][0] <= now:
                _, _, port, frame = heapq.heappop(self._late)
                self._deliver(port, frame)
            wait_s = max(0.0, self._late[0][0] - now) if self._late else None
            for key, _ in self._selector.select(wait_s):
                if key.data is not None:
                    self._read(key.data)
                elif not self._obey():
                    return

    def _obey(self) -> bool:
        """Take the next order from the standard input; return whether there was one."""
        line = os.read(0, 1 << 20)  # the lab waits for the answer to each order, so that there is one line at most
        if not line:
            kill_all(self._faults.namespaces)
            return False
        self._faults = Faults(line.decode())
        print("done", flush=True)
        return True

    def _read(self, source: int) -> None:
        for _ in range(AT_ONCE):
            try:
                frame = self._ports[source].recv(FRAME_MAX)
            except OSError:  # there is no other frame, or the interface is down
                return
            for target in self._targets(source, frame):
                if self._faults.passes(source, target, self._chance):
                    self._pass(source, target, frame)

    def _targets(self, source: int, frame: bytes) -> list[int]:
        to = frame[VNET_HEADER : VNET_HEADER + 6]
        if not to or to[0] & BROADCAST_BIT:
            return [port for port in range(len(self._ports)) if port != source]
        port = to[4] << 8 | to[5]
        return [port] if port < len(self._ports) and port != source else []

    def _pass(self, source: int, target: int, frame: bytes) -> None:
        delay_s = self._faults.delay(source, target)
        if not delay_s:
            self._deliver(target, frame)
            return
        self._count += 1
        heapq.heappush(self._late, (time.monotonic() + delay_s, self._count, target, frame))

    def _deliver(self, port: int, frame: bytes) -> None:
        if port not in self._faults.down:
            with contextlib.suppress(OSError):  # a full queue, or an interface that is down: the frame is lost
                self._ports[port].send(frame)


def _packet_socket(interface: str) -> socket.socket:
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    link.setblocking(False)
    link.bind((interface, ETH_P_ALL))
    return link


if __name__ == "__main__":
    Switch(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0).run()
