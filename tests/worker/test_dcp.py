"""What FSDP2 saved to the memory of nodes is loaded by a world of another size, exactly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.vault.vaults import VaultProcess

pytest.importorskip("torch")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_what_two_ranks_saved_is_loaded_by_another_number_of_them(size: int, tmp_path: Path) -> None:
    with VaultProcess(tmp_path, "a") as a, VaultProcess(tmp_path, "b") as b:
        saved = ranks("save", [a, b], {})
        holders = {"0": [["a", a.address]], "1": [["b", b.address]]}
        named = {"generation": 1, "step": 7, "world_size": 2, "holders": holders}
        file = tmp_path / "snapshot.json"
        file.write_text(json.dumps(named))
        loaded = ranks("load", [b, a, a][:size], {"FLOWDIST_SNAPSHOT": str(file)})
    assert len(saved) == 2 and len(loaded) == size
    assert all(each == saved[0] for each in [*saved, *loaded])


def ranks(what: str, vaults: list[VaultProcess], env: dict[str, str]) -> list[list[list[float]]]:
    """Run a world with a rank on the node of each vault, and return the tensors that each rank has in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(vaults)), **env}
    world |= {"FLOWDIST_WORLD": "trainer", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.worker.dcp_ranks", what],
            env={**os.environ, **world, "RANK": str(rank), "FLOWDIST_VAULT": vault.path},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        for rank, vault in enumerate(vaults)
    ]
    found = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(vaults)
    return [json.loads(output.splitlines()[-1]) for output in found]
