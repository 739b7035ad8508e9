"""The socket by which workers speak to their agent: lines of JSON, which the standard library can write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ReplicaId

LINE_MAX = 1 << 20


class WorkerSocket:
    """Turns lines into inputs of the agent, and its answers into lines."""

    def __init__(self, tell: Callable[[io.AgentInput], None]) -> None:
        self._tell = tell
        self._asking: dict[tuple[ReplicaId, int, str], list[asyncio.StreamWriter]] = {}
        self._elastic: dict[tuple[ReplicaId, int, int], asyncio.StreamWriter] = {}  # by attempt and local rank

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

    def leave(self, replica: ReplicaId, attempt: int) -> None:
        """To the workers of an attempt that are in elastic code: their generation is over."""
        for key, writer in self._elastic.items():
            if key[:2] == (replica, attempt):
                writer.write(b'{"leave": true}\n')

    def resume(self, replica: ReplicaId, before: int, attempt: int, local_rank: int, env: dict[str, str]) -> None:
        """To a worker that has left its generation: it is a worker of `attempt` now, with these variables changed."""
        writer = self._elastic.pop((replica, before, local_rank), None)
        if writer is not None:
            self._elastic[replica, attempt, local_rank] = writer
            writer.write(json.dumps({"resume": env}).encode() + b"\n")

    async def _serve_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello: _Hello | None = None
        try:
            while line := await reader.readline():
                said = json.loads(line)
                if "hello" in said:  # once more where the worker has become that of another attempt
                    hello = _hello(said["hello"])
                elif hello is not None:
                    self._hear(hello, said, writer)
        except (ValueError, KeyError, TypeError, ConnectionError):
            pass  # no worker of ours, or one that ended in the middle of a line
        finally:
            self._asking = {
                key: others
                for key, asking in self._asking.items()
                if (others := [w for w in asking if w is not writer])
            }
            if hello is not None and self._elastic.get(hello) is writer:
                del self._elastic[hello]
            writer.close()

    def _hear(self, hello: _Hello, line: dict[str, object], writer: asyncio.StreamWriter) -> None:
        replica, attempt, local_rank = hello
        match line:
            case {"ready": True}:
                self._tell(io.WorkerReady(replica, attempt, local_rank))
            case {"progress": int(step)}:
                self._tell(io.WorkerProgressed(replica, attempt, local_rank, step))
            case {"left": True}:
                self._tell(io.WorkerLeftStep(replica, attempt, local_rank))
            case {"elastic": bool(inside)}:
                self._elastic[hello] = writer
                self._tell(io.WorkerElastic(replica, attempt, local_rank, inside))
            case {"suspended": True}:
                self._tell(io.WorkerSuspended(replica, attempt, local_rank))
            case {"commit": {"path": str(path), "step": int(step), "generation": int(generation)}}:
                self._asking.setdefault((replica, attempt, path), []).append(writer)
                self._tell(io.WorkerOffered(replica, attempt, generation, path, step))


class _Hello(NamedTuple):
    replica: ReplicaId
    attempt: int
    local_rank: int


def _hello(said: dict[str, Any]) -> _Hello:
    role, _, index = said["replica"].rpartition("/")
    return _Hello(ReplicaId(role, int(index)), int(said["attempt"]), int(said["local_rank"]))
