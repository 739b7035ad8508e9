"""Runs of `flowdist torchrun` that several cases look at: each is made once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.runtime.harness import Job

LIMIT_S = 200.0  # for one run; on an idle machine most take a second or two
# The worker of all runs: argv[1] says what it does, argv[2] is the folder for what it was given, by rank.
WORKER = """
import ctypes, json, os, pathlib, signal, sys, time
rank, restart = int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
what, out = sys.argv[1:3]
half = pathlib.Path(f"{out}-{rank}")  # a peer that fails may have this worker killed while it writes
half.write_text(json.dumps({"env": dict(os.environ), "argv": sys.argv}))
half.rename(pathlib.Path(out, str(rank)))
print(f"out of {rank}", flush=True)
print(f"err of {rank}", file=sys.stderr, flush=True)
if what == "raise" and rank == 0:
    extra = {"py_callstack": "Traceback: RuntimeError: sad", "timestamp": str(int(time.time()))}
    told = {"message": {"message": "RuntimeError: sad", "extraInfo": extra}}
    pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(told))
    sys.exit(1)
if what == "138" and rank == 0:
    sys.exit(138)
if what == "segfault" and rank == 0:
    ctypes.string_at(0)
if what == "once" and (rank, restart) == (1, "0"):
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("odd", "odd-sleeps") and rank % 2:
    sys.exit(3)
if what == "drift" and rank:
    time.sleep(2)
if what in ("wait", "odd-sleeps", "raise", "138", "segfault"):
    time.sleep(300)
print(f"end of {rank}", flush=True)
"""
SUM = """
import os, sys
import torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
given = dict(init_method=sys.argv[1], rank=rank, world_size=size) if len(sys.argv) > 1 else {}
dist.init_process_group("gloo", **given)
total = torch.tensor(rank)
dist.all_reduce(total)
assert total.item() == sum(range(size))
dist.barrier()
print("sum", total.item(), dist.is_torchelastic_launched(), flush=True)
dist.destroy_process_group()
"""
SHELL = '#!/bin/sh\necho "creating $1/$RANK"\ntouch "$1/$RANK"\n'


class Done(NamedTuple):
    """A run that has ended."""

    code: int
    text: str  # on the terminal
    told: dict[int, dict[str, Any]]  # by rank: environment and arguments of the worker's last attempt
    folder: Path  # with the scripts, and the folder `out`
    logs: Path  # the run's folder
    left: list[int]  # processes that are still there

    @property
    def ranks(self) -> set[str]:
        """Return the ranks that have left a file."""
        return {path.name for path in (self.folder / "out").iterdir()}


class Runs:
    """Runs, each made at its first use.

    Args:
        base: The folder for their folders.
    """

    def __init__(self, base: Path) -> None:
        self._base, self._done = base, dict[str, Any]()

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """Return what `make` returns for a new folder. It is called at the first use of the name alone."""
        if name not in self._done:
            folder = self._base / name
            (folder / "out").mkdir(parents=True)
            (folder / "worker.py").write_text(WORKER)
            (folder / "sum.py").write_text(SUM)
            (folder / "worker.sh").write_text(SHELL)
            (folder / "worker.sh").chmod(0o755)
            self._done[name] = make(folder)
        return self._done[name]

    def torchrun(self, name: str, line: str, env: dict[str, str] | None = None, *, stop: bool = False) -> Done:
        """Run a command line of torchrun to its end. `{port}` in it is a free port, `{out}` the folder for files.

        Args:
            name: The name of the run.
            line: The words behind `torchrun`.
            env: More environment variables.
            stop: Send SIGTERM to the launcher as soon as a worker has begun.
        """

        def make(folder: Path) -> Done:
            words = line.format(port=free_port(), out="out").split()
            with Job(folder, *words, env={"TEST_SENTINEL_PARENT": "FOOBAR", **(env or {})}, verb="torchrun") as job:
                if stop:
                    job.until("out of 0")
                    os.kill(job.process.pid, signal.SIGTERM)
                with limited(job):
                    code = job.finish()
                return Done(code, job.text, told_in(folder), folder, _logs(folder), job.alive())

        done: Done = self.once(name, make)
        return done

    def both(self, name: str, line: str) -> list[Done]:
        """Run a command line of torchrun twice at the same time, as two hosts would; else as `torchrun`."""

        def make(folder: Path) -> list[Done]:
            words = line.format(port=free_port(), out="out").split()
            with Job(folder, *words, verb="torchrun") as first, Job(folder, *words, verb="torchrun") as second:
                with limited(first), limited(second):
                    codes = [job.finish() for job in (first, second)]
                pairs = zip((first, second), codes, strict=True)
                return [
                    Done(code, job.text, told_in(folder), folder, _logs(folder), job.alive()) for job, code in pairs
                ]

        done: list[Done] = self.once(name, make)
        return done


@contextlib.contextmanager
def limited(job: Job) -> Iterator[None]:
    """Kill the job of the block after LIMIT_S: no case may hang. Its exit code is then that of a killed process."""
    timer = threading.Timer(LIMIT_S, job.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def told_in(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what the workers of a run have written, by rank; files that shell scripts have touched are empty."""
    files = [path for path in (folder / "out").iterdir() if path.stat().st_size]
    return {int(path.name): json.loads(path.read_text()) for path in files}


def _logs(folder: Path) -> Path:
    """Return the folder of the run: below runs/ or, with --log-dir, below logs/."""
    found = sorted(path for base in ("logs", "runs") for path in (folder / base).glob("*-*") if path.is_dir())
    found += sorted(path for path in (folder / "logs").glob("*_*") if path.is_dir())
    return found[0] if found else folder


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port
