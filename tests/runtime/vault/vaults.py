"""Real vaults for tests, each with a test for its agent and for its workers; and a relay between two of them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowdist.runtime.vault.messages import TO_AGENT, Attach, Buddies, Held, Listening, Shard, line
from flowdist.runtime.vault.vault_main import VaultConfig
from flowdist.runtime.wire.handshake import TOKEN
from flowdist.worker.snapshots.vault_link import Snapshot, getting, putting

WAIT_S = 60.0
MIB = 1 << 20
SPOILED_AT = 10_000
PROGRAM = """
from flowdist.runtime.vault import peers, vault, vault_main
for module in (peers, vault):
    vars(module).update({{name: value for name, value in {constants}.items() if name in vars(module)}})
vault_main.main()
"""


class VaultProcess:
    """The vault of one node, with other values of some constants. Leaving the block kills it."""

    def __init__(
        self,
        folder: Path,
        node: str,
        *,
        token: str = "",
        constants: dict[str, float] | None = None,
        **options: Any,
    ) -> None:
        self.node, self.path = node, str(folder / f"{node}.sock")
        with socket.socket(socket.AF_UNIX) as local:
            local.bind(self.path)
            local.listen()
            config = VaultConfig(node, "job1", "run-1", local.fileno(), os.getpid(), **options)
            command = [sys.executable, "-P", "-c", PROGRAM.format(constants=constants or {})]
            self.process = subprocess.Popen(
                [*command, msgspec.json.encode(config).decode()],
                pass_fds=[local.fileno()],
                env={**os.environ, **({TOKEN: token} if token else {})},
            )
        self._connect()

    def _connect(self) -> None:
        self._agent = socket.socket(socket.AF_UNIX)
        self._agent.settimeout(WAIT_S)
        self._agent.connect(self.path)
        self._lines = self._agent.makefile("rb")
        self.attach()

    def connect_again(self) -> None:
        """Be another agent."""
        self._close()
        self._connect()

    def _close(self) -> None:
        self._lines.close()
        self._agent.close()

    def attach(self) -> None:
        """Ask for all that the agent has to know; orders that were sent before have been obeyed then."""
        self.order(Attach())
        listening = self.hear()
        assert isinstance(listening, Listening)
        self.port = listening.port

    def __enter__(self) -> VaultProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def order(self, message: msgspec.Struct) -> None:
        self._agent.sendall(line(message))

    def hear(self) -> msgspec.Struct:
        """Wait for the next message to the agent."""
        return TO_AGENT.decode(self._lines.readline())

    def gives_to(self, *buddies: tuple[str, str]) -> None:
        self.order(Buddies("trainer", buddies))

    def put(self, content: bytes, step: int = 1, rank: int = 0) -> Shard:
        """Put a shard as a worker does, and wait until the vault holds it."""
        with as_worker(self, rank), putting(step, len(content)) as memory:
            memory[:] = content
        held = self.hear()
        assert isinstance(held, Held)
        assert (held.step, held.rank) == (step, rank)
        return Shard("trainer", 1, step, rank, 4)

    def get(self, shard: Shard, *holders: tuple[str, str]) -> bytes:
        """Get a shard as a worker does."""
        named = {str(shard.rank): [list(holder) for holder in holders]}
        with (
            as_worker(self),
            getting(Snapshot(shard.generation, shard.step, shard.world_size, named), shard.rank) as memory,
        ):
            return bytes(memory)

    def blocks(self) -> set[int]:
        """Return a descriptor of each block of its memory. A block has others for a moment, as while it is mapped."""
        found = dict[int, int]()
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "flowdist-shard" in str(entry.readlink()) and entry.lstat().st_mode & stat.S_IWUSR:
                    found[entry.stat().st_ino] = int(entry.name)
        return set(found.values())

    def files(self) -> set[int]:
        """Return the inodes of its memory: a descriptor may be that of another file after a while."""
        return {Path(f"/proc/{self.process.pid}/fd/{fd}").stat().st_ino for fd in self.blocks()}

    def flip(self, fd: int, bit: int) -> None:
        """Flip one bit of its memory."""
        with Path(f"/proc/{self.process.pid}/fd/{fd}").open("r+b", buffering=0) as file:
            file.seek(bit // 8)
            (byte,) = file.read(1)
            file.seek(bit // 8)
            file.write(bytes([byte ^ (1 << bit % 8)]))

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def as_worker(vault: VaultProcess, rank: int = 0, world_size: int = 4) -> Iterator[None]:
    """Let this process be a worker of the vault's node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWDIST_VAULT", vault.path)
        patch.setenv("FLOWDIST_WORLD", "trainer")
        patch.setenv("FLOWDIST_GENERATION", "1")
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world_size))
        yield


def some_bytes(seed: int, size: int = 64 << 10) -> bytes:
    return random.Random(seed).randbytes(size)


class Relay:
    """Passes on what comes to its own port to a vault; `seen` is what the side that connects has sent.

    After `limit` bytes of one connection, it calls `then` once, and passes on no more. If it `spoils`, a bit of the
    answers is flipped, far behind their beginning.
    """

    def __init__(
        self, port: int, limit: int | None = None, then: Callable[[], None] = lambda: None, *, spoils: bool = False
    ) -> None:
        self._port, self._limit, self._then, self._spoils = port, limit, then, spoils
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.seen, self.connections = bytearray(), 0
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._door.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._door.accept()
                self.connections += 1
                with here, socket.create_connection(("127.0.0.1", self._port)) as there:
                    back = threading.Thread(target=self._pass, args=(there, here))
                    back.start()
                    self._pass(here, there, self.seen, self._limit)
                    back.join()

    def _pass(
        self, source: socket.socket, sink: socket.socket, seen: bytearray | None = None, limit: int | None = None
    ):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if seen is not None:
                    seen += data
                    if limit is not None and len(seen) > limit:
                        self._then()
                        break
                elif self._spoils and len(data) > SPOILED_AT:
                    data = data[:SPOILED_AT] + bytes([data[SPOILED_AT] ^ 1]) + data[SPOILED_AT + 1 :]
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
