"""The trainers' side of the parameter servers: rows from all of them, and a new connection when one comes back."""

from __future__ import annotations

import socket
import time

import numpy as np
import wire

from flowdist import worker

RETRY_S = 60.0


class Servers:
    """Row r lives on server r modulo their number, as its row r divided by their number."""

    def __init__(self, role: str = "ps", port: str = "rpc") -> None:
        self._role, self._port = role, port
        self._links: dict[int, socket.socket] = {}
        self.count = len(worker.peers(role, port))
        self.reconnects = 0

    def pull(self, **rows: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of each named table, in the order asked for."""
        found: dict[str, np.ndarray] = {}
        for server in range(self.count):
            mine = {name: index % self.count == server for name, index in rows.items()}
            wanted = {name: index[mine[name]] // self.count for name, index in rows.items()}
            _, values = self._ask(server, "pull", wanted)
            for name, array in values.items():
                result = found.setdefault(name, np.empty((len(rows[name]), array.shape[1]), dtype=np.float32))
                result[mine[name]] = array
        return found

    def push(self, **updates: np.ndarray) -> None:
        """`centre_rows` with `centre_gradients`, `context_rows` with `context_gradients`; rows are unique."""
        for server in range(self.count):
            part: dict[str, np.ndarray] = {}
            for name in ("centre", "context"):
                mine = updates[f"{name}_rows"] % self.count == server
                part[f"{name}_rows"] = updates[f"{name}_rows"][mine] // self.count
                part[f"{name}_gradients"] = updates[f"{name}_gradients"][mine]
            self._ask(server, "push", part, answer=False)

    def _ask(
        self, server: int, op: str, arrays: dict[str, np.ndarray], *, answer: bool = True
    ) -> tuple[str, dict[str, np.ndarray]]:
        """A server that is gone comes back where peers() says. A push that was lost is lost: SGD forgives it."""
        give_up = time.monotonic() + RETRY_S
        while True:
            try:
                link = self._links.get(server) or self._connect(server)
                wire.send(link, op, **arrays)
                return wire.receive(link) if answer else ("", {})
            except OSError:
                if server in self._links:
                    self._links.pop(server).close()
                    self.reconnects += 1
                    print(f"server {server} is away; waiting for it", flush=True)
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def _connect(self, server: int) -> socket.socket:
        host, _, port = worker.peers(self._role, self._port)[server].rpartition(":")
        link = socket.create_connection((host, int(port)), timeout=10)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._links[server] = link
        return link
