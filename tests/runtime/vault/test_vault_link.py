"""The agent's side of a vault: one that cannot start is reported, said, and not waited for."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from flowdist.control.protocol import agent_io as io
from flowdist.graph import NodeSpec
from flowdist.runtime.agent.node_config import NodeConfig
from flowdist.runtime.agent.vault_link import VaultLink
from flowdist.runtime.wire.handshake import Credentials
from tests.control.harness import graph, role

pytestmark = pytest.mark.real


def test_workers_are_refused_at_once_where_a_vault_cannot_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    node, path, heard = NodeSpec("node0"), str(tmp_path / "node0.vault.sock"), list[io.VaultInput]()
    folder = str(tmp_path)
    config = NodeConfig(node, 0, 1, folder, "run", "", folder, -1, -1, address="203.0.113.1")  # of no interface here

    async def run() -> None:
        await VaultLink(config, graph(role("trainer")), Credentials("", "node0", ""), path, heard.append).run()

    asyncio.run(run())
    assert heard == [io.VaultExited("its process ended with 70")]
    assert "node0 has no vault: it cannot start" in capfd.readouterr().err
    with socket.socket(socket.AF_UNIX) as worker, pytest.raises(FileNotFoundError):
        worker.connect(path)
    assert [*tmp_path.iterdir()] == []
