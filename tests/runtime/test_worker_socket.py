"""Whatever a worker writes to its agent's socket: it becomes an input that a message can carry, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.agent.worker_socket import WorkerSocket

HELLO = {"hello": {"replica": "trainer/0", "attempt": 1, "local_rank": 0}}
OTHER = {"hello": {"replica": "trainer/0", "attempt": 1, "local_rank": True}}
COMMIT = {"path": "/tmp/x", "step": 5, "generation": 1}


def inputs_of(*lines: object) -> tuple[list[io.AgentInput], bytes]:
    """What the pure agent gets, and what the worker reads, after a worker has written these lines."""
    inputs: list[io.AgentInput] = []

    async def talk() -> bytes:
        sockets = WorkerSocket(inputs.append)
        with tempfile.TemporaryDirectory() as folder:
            server = await sockets.serve(str(Path(folder, "s")))
            reader, writer = await asyncio.open_unix_connection(str(Path(folder, "s")))
            for line in lines:
                writer.write((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n")
            writer.write_eof()
            answer = b""
            with contextlib.suppress(ConnectionError):  # the agent has closed the connection at once
                answer = await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            server.close()
            while len(asyncio.all_tasks()) > 1:  # the connection, on the agent's side
                await asyncio.sleep(0)
        return answer

    answer = asyncio.run(talk())
    msgspec.msgpack.encode(inputs)
    return inputs, answer


BAD = [
    b"",
    b"\xff\xfe",
    b"[" * 100_000,
    b"5",
    b'"hello"',
    b"null",
    b"x" * (2 << 20),
    {"hello": 5},
    {"hello": {"replica": 5, "attempt": 1, "local_rank": 0}},
    {"hello": {"replica": "trainer/0", "attempt": "x", "local_rank": 0}},
    {"hello": {"replica": "trainer/0", "attempt": 10**30, "local_rank": 0}},
    {"progress": 10**30},
    {"progress": -(10**30)},
    {"progress": "x"},
    {"counted": 10**30},
    {"counted": -(10**30)},
    {"counted": 1.5},
    {"counted": True},
    b'{"counted": NaN}',
    {"spent": {"on": "saving", "ns": 10**30}},
    {"spent": {"on": "saving", "ns": 1.5}},
    {"spent": {"on": "saving", "ns": True}},
    {"spent": {"on": "playing", "ns": 1}},
    {"spent": {"ns": 1}},
    {"spent": 1},
    {"commit": {**COMMIT, "step": 10**30}},
    {"commit": {**COMMIT, "generation": 10**30}},
    {"commit": {**COMMIT, "path": 5}},
    {"commit": 5},
    b"\n".join(json.dumps(line).encode() for line in (OTHER, {"counted": 1})),
    {"elastic": 5},
    {"published": -1},
    {"published": 1 << 63},
    {"published": True},
    {"published": "7"},
    {"acknowledged": -1},
    {"acknowledged": 1.5},
    {"acknowledged": 10**30},
]


@pytest.mark.parametrize("line", BAD, ids=[str(line)[:40] for line in BAD])
def test_a_line_that_makes_no_sense_is_no_input(line: object) -> None:
    assert inputs_of(HELLO, line)[0] == []


def test_lines_that_make_sense_are_inputs() -> None:
    of = (ReplicaId("trainer", 0), 1)
    versions = {"published": 7}, {"acknowledged": 0}
    inputs, _ = inputs_of(HELLO, {"progress": 3}, {"counted": 4}, {"commit": COMMIT}, {"ready": True}, *versions)
    assert inputs == [
        io.WorkerProgressed(*of, 0, 3),
        io.WorkerStepped(*of, 0, 4),
        io.WorkerOffered(*of, 1, "/tmp/x", 5),
        io.WorkerReady(*of, 0),
        io.WorkerPublished(*of, 0, 7),
        io.WorkerAcknowledged(*of, 0, 0),
    ]


def test_a_checkpoint_whose_path_no_message_can_carry_is_refused() -> None:
    inputs, answer = inputs_of(HELLO, {"commit": {**COMMIT, "path": "/tmp/\udcff"}})
    assert inputs == []
    assert json.loads(answer)["commit"] == {"path": "/tmp/\udcff", "accepted": False, "reason": "its path is no UTF-8"}
