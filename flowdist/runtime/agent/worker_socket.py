"""The Unix socket between the workers of a node and their agent.

Both sides write lines of JSON, because `flowdist.worker` uses only the standard library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.events import Sampling
from flowdist.control.protocol.ids import VERSION_MAX, ReplicaId
from flowdist.runtime.last_words import die_of
from flowdist.runtime.left_files import clean

LINE_MAX = 1 << 20
NUMBER_MAX = (1 << 63) - 1  # messages have no larger numbers

_Identity = tuple[ReplicaId, int, int]  # of a worker: its replica, attempt and local rank


class WorkerSocket:
    """The agent's side of the connections to its workers, whose lines become inputs of the pure agent (`handle`)."""

    def __init__(self, handle: Callable[[io.AgentInput], None]) -> None:
        self._handle = handle
        self._offers: dict[tuple[ReplicaId, int, str], list[asyncio.StreamWriter]] = {}
        self._in_elastic: dict[_Identity, asyncio.StreamWriter] = {}

    async def serve(self, path: str) -> asyncio.Server:
        """Make a Unix socket that only this user may open, accept workers at it, and return the server."""
        server = await asyncio.start_unix_server(self._serve_worker, path, limit=LINE_MAX)
        Path(path).chmod(0o600)
        return server

    def answer(self, answer: io.AnswerWorker, *, error: str = "") -> None:
        """Answer the connected workers that wait after `commit()`, which raises `error` unless that is empty."""
        content = {"path": answer.path, "accepted": answer.accepted, "reason": answer.reason}
        line = {"commit": {**content, "error": error} if error else content}
        for writer in self._offers.pop((answer.replica, answer.attempt, answer.path), []):
            writer.write(json.dumps(line).encode() + b"\n")

    def leave(self, replica: ReplicaId, attempt: int) -> None:
        """Ask the attempt's connected workers in `elastic()` to leave; each reports later that it is suspended."""
        for key, writer in self._in_elastic.items():
            if key[:2] == (replica, attempt):
                writer.write(b'{"leave": true}\n')

    def resume(self, replica: ReplicaId, before: int, attempt: int, local_rank: int, env: dict[str, str]) -> None:
        """Have a suspended worker continue in another attempt, with the changes in `env`, if it is connected."""
        writer = self._in_elastic.pop((replica, before, local_rank), None)
        if writer is not None:
            self._in_elastic[replica, attempt, local_rank] = writer
            writer.write(json.dumps({"resume": env}).encode() + b"\n")

    async def _serve_worker(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello: _Identity | None = None
        try:
            while line := await reader.readline():
                content = json.loads(line)
                if "hello" in content:  # sent again by a worker that now belongs to another attempt
                    hello = _hello(content["hello"])
                elif hello is not None:
                    self._handle_line(hello, content, writer)
        except (ValueError, KeyError, TypeError, RecursionError, OSError):
            pass  # not a worker of this node, or one that ended in the middle of a line
        except Exception as error:  # else the worker would wait for an answer, or the job for a report
            die_of(error)
        finally:
            self._offers = {
                key: others
                for key, writers in self._offers.items()
                if (others := [w for w in writers if w is not writer])
            }
            if hello is not None and self._in_elastic.get(hello) is writer:
                del self._in_elastic[hello]
            writer.close()

    def _handle_line(self, hello: _Identity, line: dict[str, object], writer: asyncio.StreamWriter) -> None:
        replica, attempt, local_rank = hello
        match line:
            case {"ready": True}:
                self._handle(io.WorkerReady(replica, attempt, local_rank))
            case {"progress": int(step)}:
                self._handle(io.WorkerProgressed(replica, attempt, local_rank, _number(step)))
            case {"counted": int(steps)}:
                self._handle(io.WorkerStepped(replica, attempt, local_rank, _number(steps)))
            case {"spent": {"on": "saving" | "restoring" as on, "ns": int(ns)}}:
                self._handle(io.WorkerSpent(replica, attempt, local_rank, on, _number(ns)))
            case {"published": int(version)}:
                self._handle(io.WorkerPublished(replica, attempt, local_rank, _number(version, 0, VERSION_MAX)))
            case {"acknowledged": int(version)}:
                self._handle(io.WorkerAcknowledged(replica, attempt, local_rank, _number(version, 0, VERSION_MAX)))
            case {"sampling": {**told}}:
                begin, rank, ranks = (_number(told[name], 0) for name in ("begin", "rank", "ranks"))
                size, batch, micro = (
                    _number(told[name], 1) for name in ("dataset_size", "global_batch", "micro_batch")
                )
                sampling = Sampling(size, batch, micro, _number(told["seed"], 0), bool(told["shuffle"]))
                self._handle(io.WorkerSampling(replica, attempt, local_rank, begin, rank, ranks, sampling))
            case {"left": True}:
                self._handle(io.WorkerLeftStep(replica, attempt, local_rank))
            case {"elastic": bool(inside)}:
                self._in_elastic[hello] = writer
                self._handle(io.WorkerElastic(replica, attempt, local_rank, inside))
            case {"suspended": True}:
                self._handle(io.WorkerSuspended(replica, attempt, local_rank))
            case {"commit": {"path": str(path), "step": int(step), "generation": int(generation)}}:
                self._offers.setdefault((replica, attempt, path), []).append(writer)
                offer = io.WorkerOffered(replica, attempt, _number(generation), path, _number(step))
                if clean(path) == path:
                    self._handle(offer)
                else:
                    self.answer(io.AnswerWorker(replica, attempt, path, step, False, "its path is no UTF-8"))


def _hello(content: dict[str, Any]) -> _Identity:
    role, _, index = str(content["replica"]).rpartition("/")
    return ReplicaId(clean(role), _number(index)), _number(content["attempt"]), _number(content["local_rank"])


def _number(value: Any, least: int = -NUMBER_MAX, most: int = NUMBER_MAX) -> int:
    """Return a number that a worker has sent. Raises ValueError if it is none, or not in this range."""
    number = int(value)
    if isinstance(value, bool) or not least <= number <= most:
        raise ValueError(f"{value} is no number, or out of range")
    return number
