"""A launcher that forks its workers without care: what the oracle has to find fault with.

The script is run once, up to its first read of a variable of a rank. There, two workers are forked, and forked again
for a restart. Nothing of what they share is given back to each of them: numbers, files, threads, output, time.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

RANKED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")


class Environment(type(os.environ)):  # type: ignore[misc]
    """The environment of the prefix: the first read of a variable of a rank returns in each worker."""

    logs = Path()

    def __getitem__(self, name: str) -> str:
        if name in RANKED and name.encode() not in self._data:
            split(self)
        return str(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        if b"RANK" not in self._data:
            split(self)
        return iter(super().__iter__())


def split(environment: Environment) -> None:
    """Fork the workers of each attempt; only in these it returns. The process that forks ends with the last of them."""
    for attempt in (0, 1):
        workers = {}
        for rank in (0, 1):
            pid = os.fork()
            if pid == 0:
                become(environment, attempt, rank)
                return
            workers[pid] = rank
        codes = []
        while workers:
            pid, status = os.wait()
            del workers[pid]
            codes.append(os.waitstatus_to_exitcode(status))
            if codes[-1]:
                for other in workers:
                    os.kill(other, signal.SIGKILL)
        if not any(codes):
            os._exit(0)
    os._exit(1)


def become(environment: Environment, attempt: int, rank: int) -> None:
    """Be a worker: its variables, and its logs."""
    values = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank))
    values |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), "2")
    values |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}
    environment.update(values | {"TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_RUN_ID": "naive"})
    folder = environment.logs / f"naive/attempt_{attempt}/{rank}"
    folder.mkdir(parents=True)
    for number, name in ((1, "stdout.log"), (2, "stderr.log")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def main() -> None:
    """Run the script that torchrun's words name."""
    words = sys.argv[1:]
    Environment.logs = Path(words[words.index("--log-dir") + 1])
    words = words[words.index("-r") + 2 :]
    os.environ.__class__ = Environment
    sys.argv = words
    sys.path[0] = str(Path(words[0]).resolve().parent)
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
