"""The workers of a node: what the orders of a large world say reaches their processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId, Shards, SnapshotRef
from flowdist.graph import NodeSpec, RoleSpec, SnapshotSpec
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.agent.worker_socket import WorkerSocket
from flowdist.runtime.agent.workers import Workers
from flowdist.runtime.gpus.guard import GpuGuard
from flowdist.runtime.processes import spawn_protocol as spawner
from flowdist.runtime.stores.stores import Stores
from flowdist.runtime.wire.endpoint import Endpoint
from flowdist.runtime.worker_env.environment import RunPaths
from tests.control.harness import graph, r

pytestmark = pytest.mark.real
RANKS = 3000
ASKING = (
    "import json; from flowdist.worker.snapshots.vault_link import named_snapshot; print(json.dumps(named_snapshot()))"
)


class Sockets(WorkerSocket):
    """The connections of workers that are told to go on in another attempt; `env` is what their environment has new."""

    env: dict[str, str]

    def resume(self, replica: ReplicaId, before: int, attempt: int, local_rank: int, env: dict[str, str]) -> None:
        self.env = env


def workers_of(role: RoleSpec, folder: Path) -> tuple[Workers, Sockets, list[io.AgentInput], list[object]]:
    """Return the workers of a node of a job with one role, their sockets, and what the agent and others hear."""
    loop, ids, heard, sent = asyncio.get_running_loop(), itertools.count(), list[io.AgentInput](), list[object]()
    config = NodeConfig(NodeSpec("node7"), 7, 1, str(folder), "run", "", str(folder), -1, -1)
    paths = RunPaths(str(folder), "run", str(folder / "checkpoints"), "agent.sock", "vault.sock")
    stores = Stores(loop, heard.append, Endpoint("127.0.0.1", 0), sent.append, ids, str(folder), str(folder))
    sockets, gpus = Sockets(heard.append), GpuGuard(loop, (), heard.append)
    workers = Workers(config, graph(role), paths, heard.append, sent.append, sent.append, ids, sockets, gpus, stores)
    return workers, sockets, heard, sent


def order(attempt: int, step: int) -> StartReplica:
    """Return the order to go on from a snapshot of RANKS ranks, each of which two nodes hold."""
    vaults = tuple((f"node{number}", f"host-node{number}.example.org:40000") for number in range(RANKS))
    shards = tuple(Shards(1, (number, (number + 1) % RANKS)) for number in range(RANKS))
    snapshot = SnapshotRef(attempt, step, shards, vaults)
    world = ("trainer", attempt + 1, 7, RANKS, 7, RANKS, 7, RANKS, 7, "127.0.0.1", 29500)
    return StartReplica("node7", r("trainer/7"), attempt, *world, snapshot=snapshot)


def test_workers_of_a_large_world_know_who_holds_each_shard_when_they_start_and_when_they_go_on_in_place(
    tmp_path: Path,
) -> None:
    async def spawn() -> tuple[spawner.Spawn, dict[str, str]]:
        role = RoleSpec("trainer", (sys.executable, "-c", ASKING), snapshots=SnapshotSpec(2, 10), warm=False)
        workers, sockets, heard, sent = workers_of(role, tmp_path)
        workers.spawn(order(1, 20), ())
        (request,) = sent
        assert isinstance(request, spawner.Spawn) and heard == []
        workers.spawn(order(2, 30), (0,))
        assert [type(each) for each in heard] == [io.WorkersSpawned] and len(sent) == 1
        return request, sockets.env

    request, changed = asyncio.run(spawn())
    for env, attempt, step in ((request.env, 1, 20), ({**request.env, **changed}, 2, 30)):
        found = subprocess.run(request.argv, env=env, stdout=subprocess.PIPE, check=True).stdout
        generation, of_step, world_size, holders = json.loads(found)
        assert (generation, of_step, world_size, len(holders)) == (attempt, step, RANKS, RANKS)
        for rank, (first, second) in ((0, (0, 1)), (7, (7, 8)), (2999, (2999, 0))):
            nodes = [f"node{first}", f"node{second}"]
            assert holders[str(rank)] == [[node, f"host-{node}.example.org:40000"] for node in nodes]


SCRIPT = (sys.executable, "train.py")
ROLES = {
    "plain": RoleSpec("trainer", SCRIPT, gang=True),
    "snapshots": RoleSpec("trainer", SCRIPT, gang=True, snapshots=SnapshotSpec(2, 10)),
    "dimensions": RoleSpec("trainer", SCRIPT, max_replicas=RANKS, gang=True, parallel=(("dp", 0), ("tp", 2))),
    "ports": RoleSpec("trainer", SCRIPT, ports=("rpc",)),
    "macros": RoleSpec("trainer", (*SCRIPT, "${rank}", "${log_dir}"), env=(("ATTEMPT", "${attempt}"),)),
    "processes": RoleSpec("trainer", SCRIPT, procs=2, virtual_local_rank=True),
}


@pytest.mark.parametrize("role", ROLES.values(), ids=ROLES)
def test_what_a_node_prepares_is_what_its_workers_ask_for(role: RoleSpec, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    role = msgspec.structs.replace(role, workdir=str(tmp_path))

    async def spawn() -> list[Any]:
        workers, _, heard, sent = workers_of(role, tmp_path)
        workers.spawn(order(1, 20), ())
        workers.spawn(order(2, 30), ())
        assert heard == []
        return [workers.prefixes(), *sent]

    prepared, *spawns = asyncio.run(spawn())
    assert len(spawns) == 2 * role.procs
    assert [each.prefix for each in spawns if isinstance(each, spawner.Spawn)] == prepared * len(spawns)
