"""How long a snapshot in memory keeps training waiting, beside other copies of the same state.

    python benchmarks/snapshot.py [--trials 7] [--mib 200]

Two ranks, each on a node with a vault, have a state of 200 MiB each, as 20 tensors. Turn by turn, both at a time, they
call `worker.snapshot`, `torch.save` to /dev/shm, and `clone()` of each tensor. The next turn begins when both nodes
hold both shards. The first turn is left out: memory that a process gets for the first time has to be cleared. Further
rows say how long it takes from the call until two nodes hold a snapshot, and how long `worker.restore` takes from the
own node, and on a third node from another one.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from flowdist.runtime.vault.messages import TO_AGENT, Attach, Buddies, Held, Listening, Release, line
from flowdist.runtime.vault.vault_main import VaultConfig

TENSORS = 20
ROWS = {
    "snapshot": "`worker.snapshot`",
    "clone": "`clone()` of each tensor",
    "save": "`torch.save` to /dev/shm",
    "held": "from the call until two nodes hold it",
    "near": "`worker.restore` from the own node",
    "far": "`worker.restore` of one shard from another node",
}


class Node:
    """A vault, a rank beside it, and this process as its agent."""

    def __init__(self, folder: Path, rank: int, mib: int) -> None:
        self.name, path = f"node{rank}", str(folder / f"{rank}.sock")
        with socket.socket(socket.AF_UNIX) as local:
            local.bind(path)
            local.listen()
            config = VaultConfig(self.name, "benchmark", "1", local.fileno(), os.getpid(), limit=mib << 23)
            command = [sys.executable, "-m", "flowdist.runtime.vault.vault_main", msgspec.json.encode(config).decode()]
            self._vault = subprocess.Popen(command, pass_fds=[local.fileno()])
        self._agent = socket.socket(socket.AF_UNIX)
        self._agent.connect(path)
        self._lines = self._agent.makefile("rb")
        self.order(Attach())
        listening = self.hear()
        assert isinstance(listening, Listening)
        self.address = f"127.0.0.1:{listening.port}"
        self._snapshot = folder / f"snapshot{rank}.json"  # to restore
        variables = {"FLOWDIST_VAULT": path, "FLOWDIST_WORLD": "trainer", "RANK": str(rank), "WORLD_SIZE": "2"}
        variables |= {"FLOWDIST_SNAPSHOT": str(self._snapshot)}
        self._rank = subprocess.Popen(
            [sys.executable, __file__, "--rank", str(folder / f"rank{rank}"), "--mib", str(mib)],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, message: msgspec.Struct) -> None:
        self._agent.sendall(line(message))

    def hear(self) -> msgspec.Struct:
        return TO_AGENT.decode(self._lines.readline())

    def begin(self, what: str, step: int, snapshot: dict[str, Any] | None = None) -> None:
        assert self._rank.stdin is not None
        self._snapshot.write_text(json.dumps(snapshot))
        print(json.dumps([what, step]), file=self._rank.stdin, flush=True)

    def took_s(self) -> float:
        assert self._rank.stdout is not None
        return float(self._rank.stdout.readline())

    def end(self) -> None:
        for process in (self._rank, self._vault):
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=7)
    parser.add_argument("--mib", type=int, default=200)
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        run_rank(Path(options.rank), options.mib)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        *nodes, other = [Node(Path(folder), rank, options.mib) for rank in range(3)]
        try:
            nodes[0].order(Buddies("trainer", ((nodes[1].name, nodes[1].address),)))
            nodes[1].order(Buddies("trainer", ((nodes[0].name, nodes[0].address),)))
            times = measure(nodes, other, options.trials)
        finally:
            for node in (*nodes, other):
                node.end()
    print(table(times, options.mib))


def measure(nodes: list[Node], other: Node, trials: int) -> dict[str, list[float]]:
    """Return seconds for each row; of the two ranks, the slower one counts.

    Memory that was read may be mapped still, and is not used again: the rows of restoring come last.
    """
    times: dict[str, list[float]] = {row: [] for row in ROWS}
    for step in range(2 * trials + 1):
        began_s = time.perf_counter()
        found = {"snapshot": both(nodes, "snapshot", step)}
        for node in nodes:
            held = [node.hear() for _ in range(2)]  # its own, and that of the other node
            assert all(isinstance(each, Held) and each.step == step for each in held), held
        found["held"] = time.perf_counter() - began_s
        if step <= trials:
            found |= {what: both(nodes, what, step) for what in ("clone", "save")}
        else:
            found = {"near": restore(nodes, nodes, step), "far": restore([other], nodes, step)}
        for row, took_s in found.items() if step else ():
            times[row].append(took_s)
        for node in (*nodes, other) if step else ():
            node.order(Release("trainer", 1, step - 1))  # training has one snapshot and the next one
    return times


def restore(readers: list[Node], nodes: list[Node], step: int) -> float:
    """Have the worker of each reader restore a shard of its own, which is on both nodes."""
    holders = [[node.name, node.address] for node in nodes]
    named = {"generation": 1, "step": step, "world_size": 2, "holders": {"0": holders, "1": holders}}
    for rank, reader in enumerate(readers):
        reader.begin("restore", rank, named)
    return max(reader.took_s() for reader in readers)


def both(nodes: list[Node], what: str, step: int) -> float:
    for node in nodes:
        node.begin(what, step)
    return max(node.took_s() for node in nodes)


def run_rank(file: Path, mib: int) -> None:
    import torch  # only ranks need it

    from flowdist import worker

    state = {f"w{number}": torch.randn((mib << 18) // TENSORS) for number in range(TENSORS)}
    kept: list[Any] = []

    def act(what: str, step: int) -> object:
        match what:
            case "snapshot":
                return worker.snapshot(step, state)
            case "clone":
                return kept.append({name: tensor.clone() for name, tensor in state.items()})
            case "save":
                return torch.save(state, file)
            case _:
                return worker.restore(rank=step)

    for request in sys.stdin:
        what, step = json.loads(request)
        began_s = time.perf_counter()
        assert act(what, step) is not False
        print(time.perf_counter() - began_s, flush=True)
        del kept[:-1]  # as a program that keeps its last copy


def table(times: dict[str, list[float]], mib: int) -> str:
    of_clone = statistics.median(times["clone"])
    rows = [f"| two ranks, {mib} MiB each | median | of `clone()` |", "|---|---|---|"]
    for row, what in ROWS.items():
        median = statistics.median(times[row])
        rows.append(f"| {what} | {median * 1000:.0f} ms | {median / of_clone:.2f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
