"""The socket by which workers speak to their agent: lines of JSON, which the standard library can write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

from flowdist.control import agent_io as io
from flowdist.control.ids import ReplicaId

LINE_MAX = 1 << 20


class WorkerSocket:
    """Turns lines into inputs of the agent, and its answers into lines."""

    def __init__(self, tell: Callable[[io.AgentInput], None]) -> None:
        self._tell = tell
        self._asking: dict[tuple[ReplicaId, int, str], list[asyncio.StreamWriter]] = {}

    async def serve(self, path: str) -> asyncio.Server:
        """Listen on a Unix socket that only this user may open."""
        server = await asyncio.start_unix_server(self._serve_worker, path, limit=LINE_MAX)
        Path(path).chmod(0o600)
        return server

    def answer(self, answer: io.AnswerWorker) -> None:
        """To the worker that asked; if it is gone there is nobody to tell."""
        line = {"commit": {"path": answer.path, "accepted": answer.accepted, "reason": answer.reason}}
        for writer in self._asking.pop((answer.replica, answer.attempt, answer.path), []):
            writer.write(json.dumps(line).encode() + b"\n")

    async def _serve_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = json.loads(await reader.readline())["hello"]
            role, _, index = hello["replica"].rpartition("/")
            replica, attempt = ReplicaId(role, int(index)), int(hello["attempt"])
            while line := await reader.readline():
                self._hear(replica, attempt, int(hello["local_rank"]), json.loads(line), writer)
        except (ValueError, KeyError, TypeError, ConnectionError):
            pass  # no worker of ours, or one that ended in the middle of a line
        finally:
            self._asking = {
                key: others
                for key, asking in self._asking.items()
                if (others := [w for w in asking if w is not writer])
            }
            writer.close()

    def _hear(
        self, replica: ReplicaId, attempt: int, local_rank: int, line: dict[str, object], writer: asyncio.StreamWriter
    ) -> None:
        match line:
            case {"ready": True}:
                self._tell(io.WorkerReady(replica, attempt, local_rank))
            case {"progress": int(step)}:
                self._tell(io.WorkerProgressed(replica, attempt, local_rank, step))
            case {"left": True}:
                self._tell(io.WorkerLeftStep(replica, attempt, local_rank))
            case {"commit": {"path": str(path), "step": int(step), "generation": int(generation)}}:
                self._asking.setdefault((replica, attempt, path), []).append(writer)
                self._tell(io.WorkerOffered(replica, attempt, generation, path, step))
