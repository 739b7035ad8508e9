"""A parameter server: every n-th row of both embedding tables, updated with row-wise Adagrad, kept in checkpoints.

It checkpoints every few seconds and when it is told to stop; a restarted server goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import socketserver
import threading
import time
from pathlib import Path

import numpy as np
import text
import wire

from flowdist import worker

DIM = 64
RATE = 0.3
TABLES = ("centre", "context")


class Tables:
    """Rows `index, index + servers, ...` of both tables, and the squared gradients that Adagrad remembers."""

    def __init__(self, rows: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.lock = threading.Lock()
        self.pushes = 0
        self.values = {
            "centre": (rng.random((rows, DIM), dtype=np.float32) - 0.5) / DIM,
            "context": np.zeros((rows, DIM), dtype=np.float32),
        }
        self.squares = {name: np.full(rows, 1e-6, dtype=np.float32) for name in TABLES}

    def pull(self, name: str, rows: np.ndarray) -> np.ndarray:
        with self.lock:
            return self.values[name][rows]

    def push(self, name: str, rows: np.ndarray, gradients: np.ndarray) -> None:
        """Rows are unique: the trainer has summed their gradients."""
        with self.lock:
            self.squares[name][rows] += (gradients**2).mean(axis=1)
            self.values[name][rows] -= RATE * gradients / np.sqrt(self.squares[name][rows])[:, None]
            self.pushes += 1

    def save(self, folder: Path) -> Path:
        """A file of its own, complete on the disk before anybody is told of it."""
        folder.mkdir(parents=True, exist_ok=True)
        with self.lock:
            arrays = {f"{name}_values": self.values[name].copy() for name in TABLES}
            arrays |= {f"{name}_squares": self.squares[name].copy() for name in TABLES}
            pushes = self.pushes
        path = folder / f"{worker.info().replica.replace('/', '-')}-{worker.info().attempt}-{pushes}.npz"
        with path.open("wb") as file:
            np.savez(file, pushes=pushes, **arrays)
            file.flush()
            os.fsync(file.fileno())
        return path

    def load(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as saved:
            for name in TABLES:
                self.values[name] = saved[f"{name}_values"]
                self.squares[name] = saved[f"{name}_squares"]
            self.pushes = int(saved["pushes"])


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], tables: Tables) -> None:
        super().__init__(address, Handler)
        self.tables = tables


class Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """One trainer's connection: pull and push until it goes away."""
        assert isinstance(self.server, Server) and isinstance(self.request, socket.socket)
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tables = self.server.tables
        try:
            while True:
                op, arrays = wire.receive(self.request)
                if op == "pull":
                    wire.send(self.request, "rows", **{name: tables.pull(name, rows) for name, rows in arrays.items()})
                elif op == "push":
                    for name in TABLES:
                        tables.push(name, arrays[f"{name}_rows"], arrays[f"{name}_gradients"])
        except (ConnectionError, OSError):
            pass  # the trainer ended or was killed: its successor opens a connection of its own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", type=int, required=True)
    parser.add_argument("--checkpoint-every", type=float, default=3.0, help="seconds")
    options = parser.parse_args()
    index = worker.info().replica_index
    words = len(text.load().words)
    tables = Tables(len(range(index, words, options.servers)), seed=index)
    if (path := worker.latest()) is not None:
        tables.load(path)
        print(f"resumed after {tables.pushes} pushes from {path.name}", flush=True)
    server = Server(("127.0.0.1", worker.port("rpc")), tables)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"serving rows {index}, {index + options.servers}, ... of {words}", flush=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    saved: Path | None = None
    while not stop.wait(options.checkpoint_every):
        saved = checkpoint(tables, saved)
    checkpoint(tables, saved)
    print(f"stopped after {tables.pushes} pushes, {time.process_time():.1f} s of CPU", flush=True)


def checkpoint(tables: Tables, before: Path | None) -> Path | None:
    """Save, publish, and delete the one before. One that was refused is not the latest and goes."""
    path = tables.save(worker.checkpoint_dir() / "ps")
    if not worker.commit(path, step=tables.pushes):
        path.unlink()
        return before
    if before is not None and before != path:
        before.unlink(missing_ok=True)
    return path


if __name__ == "__main__":
    main()
