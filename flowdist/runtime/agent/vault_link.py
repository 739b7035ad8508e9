"""The agent's side of the vault of its node: it starts the process, and passes on what both have to say (R24)."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import msgspec

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import effects as fx
from flowdist.graph import RoleGraph
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.last_words import die_of
from flowdist.runtime.processes.unexpected import start_task
from flowdist.runtime.vault.limits import default_limit
from flowdist.runtime.vault.messages import TO_AGENT, Attach, Broken, Buddies, Held, Listening, Release, line
from flowdist.runtime.vault.vault_main import VaultConfig
from flowdist.runtime.wire.addresses import BACKLOG
from flowdist.runtime.wire.handshake import TOKEN, Credentials

RETRY_S = 1.0  # from the end of a vault to the start of the next one


class VaultLink:
    """The vault of a node, whose messages become inputs of the pure agent (`handle`).

    The process is a child of the agent: if that dies, the guardian ends the node, and the vault with it. A vault that
    dies loses its copies, and is started again.
    """

    def __init__(
        self,
        config: NodeConfig,
        graph: RoleGraph,
        credentials: Credentials,
        path: str,
        handle: Callable[[io.VaultInput], None],
    ) -> None:
        self._config, self._credentials, self._handle = config, credentials, handle
        self._job, self._is_alone = graph.name, config.controller is None
        self._nodes = max(1, len(graph.cluster.nodes))
        self._writer: asyncio.StreamWriter | None = None
        self._has_listened = False
        Path(path).unlink(missing_ok=True)  # of a node of the same name that was lost
        self._path, self._listener = path, socket.socket(socket.AF_UNIX)
        self._listener.bind(path)  # before any worker looks for it
        Path(path).chmod(0o600)
        self._listener.listen(BACKLOG)

    async def run(self) -> None:
        """Keep a vault running until this is cancelled. One that ends before it listens is not started again."""
        while True:
            self._has_listened = False
            detail = await self._run_one()
            self._writer = None
            self._handle(io.VaultExited(detail))
            if not self._has_listened:
                self._listener.close()  # else workers would wait for an answer
                Path(self._path).unlink(missing_ok=True)
                print(f"flowdist: {self._config.node.name} has no vault: it cannot start", file=sys.stderr, flush=True)
                return
            await asyncio.sleep(RETRY_S)

    async def _run_one(self) -> str:
        """Start a vault, pass on what it says until its process ends, and return how that was."""
        try:
            process = await self._start()
        except OSError as error:  # as where no memory is left
            return f"its process could not be started: {error}"
        reading = start_task(self._read(), die_of)
        code = await process.wait()
        reading.cancel()
        await asyncio.wait([reading])
        return f"its process ended with {code}"

    async def _read(self) -> None:
        """Connect to the vault, and pass on what it says."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            return  # something has removed the socket: workers do not reach the vault either
        self._writer = writer
        writer.write(line(Attach()))
        try:
            while message := await reader.readline():
                self._pass_on(TO_AGENT.decode(message))
        except (OSError, ValueError, msgspec.MsgspecError):
            pass  # the process has ended, perhaps in the middle of a line
        finally:
            writer.close()

    def obey(self, order: fx.OfVault) -> None:
        """Pass an order to the vault; one that has just died gets none, and has nothing that it is about."""
        if self._writer is None:
            return
        match order:
            case fx.SetBuddies():
                self._writer.write(line(Buddies(order.world, order.buddies)))
            case fx.ReleaseCopies():
                self._writer.write(line(Release(order.world, order.generation, order.step)))
            case _:
                assert_never(order)

    async def _start(self) -> asyncio.subprocess.Process:
        # nodes of one machine share its memory
        limit = default_limit() // (self._nodes if self._is_alone else 1)
        local = self._listener.fileno()
        names = (self._config.node.name, self._job, self._config.run_id)
        config = VaultConfig(*names, local, os.getpid(), self._config.address, limit)
        words = [sys.executable, "-m", "flowdist.runtime.vault.vault_main", msgspec.json.encode(config).decode()]
        env = {**os.environ, TOKEN: self._credentials.token}
        return await asyncio.create_subprocess_exec(*words, pass_fds=[local], env=env)

    def _pass_on(self, message: Listening | Held | Broken) -> None:
        match message:
            case Listening():
                self._has_listened = True
                self._handle(io.VaultBound(message.port))
            case Held():
                key = (message.world, message.generation, message.step, message.rank)
                self._handle(io.CopyStored(*key, message.world_size, message.bytes, f"{message.digest:08x}"))
            case Broken():
                key = (message.world, message.generation, message.step, message.rank)
                self._handle(io.CopyDamaged(*key, message.why))
            case _:
                assert_never(message)
