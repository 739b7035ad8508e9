"""What the rows share: the GPUs, jobs of flowdist and torchrun, and the lines that workers have written."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.runtime.gpus.driver import FAKE_GPUS, Gpu
from tests.gpu import scripts
from tests.runtime.harness import Job

Stamp = dict[str, Any]
WORKERS_MAX = 4


class Broken(Exception):
    """A row whose promise was not kept."""


class Bench:
    """One row's folder, and the means to play the row.

    Args:
        folder: An empty folder.
        gpus: The GPUs of this machine; in a rehearsal, made up.
        is_rehearsal: Whether the scripts run on the CPU.
        until: When the row has to be over (`time.monotonic`).
    """

    def __init__(self, folder: Path, gpus: Sequence[Gpu], is_rehearsal: bool, until: float) -> None:
        self.folder, self.gpus, self.is_rehearsal, self.until = folder, tuple(gpus), is_rehearsal, until
        self.workers = 2 if is_rehearsal else min(len(gpus), WORKERS_MAX)  # NCCL wants a device for each

    def script(self, text: str, head: str = "") -> str:
        """Write a script of `scripts`, and return its name."""
        (self.folder / "train.py").write_text(head + scripts.PRELUDE + text)
        return "train.py"

    def topology(self, roles: str) -> str:
        """Write a topology with one node, which has all GPUs, and these lines; return its name."""
        node = f"Node(cpu=8, gpu={len(self.gpus)})"
        head = f"from flowdist import Node, Restart, Topology\nt = Topology('gpu', nodes=[{node}], lease='20s')\n"
        (self.folder / "topology.py").write_text(f"{head}policy = Restart('role', max_restarts=3)\n{roles}\n")
        return "topology.py"

    def env(self, stamps: str, kills: int = 0) -> dict[str, str]:
        """Return the variables of a job whose workers write to the file `stamps`."""
        env = {"GPU_STAMPS": str(self.folder / stamps), "GPU_KILLS": str(kills)}
        if self.is_rehearsal:
            listed = [{"uuid": gpu.uuid, "model": gpu.model} for gpu in self.gpus]
            (self.folder / "gpus.json").write_text(json.dumps(listed))
            env |= {"GPU_REHEARSAL": "1", FAKE_GPUS: str(self.folder / "gpus.json")}
        return env

    def job(self, verb: str, *words: str, stamps: str = "stamps", kills: int = 0) -> Job:
        """Start `flowdist VERB WORDS`. Leaving the block of the job kills what is left."""
        return Job(self.folder, *words, env=self.env(stamps, kills), verb=verb)

    def succeeded(self, verb: str, *words: str, stamps: str = "stamps", kills: int = 0) -> Job:
        """Run a job of flowdist to its end, and check that it has succeeded."""
        with self.job(verb, *words, stamps=stamps, kills=kills) as job, self.limited(job.kill):
            code = job.finish()
            if code or job.alive():
                raise Broken(f"exit code {code}: {job.text[-600:]}")
        return job

    @contextlib.contextmanager
    def torchrun(self, *words: str, kills: int) -> Iterator[None]:
        """Run a command line of torch's own torchrun, without the shared store, with which it does not recover."""
        env = {**os.environ, **self.env("torchrun", kills), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        command = [sys.executable, "-m", "torch.distributed.run", *words]
        with (self.folder / "torchrun.log").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            pids = {stamp["pid"] for stamp in self.stamps("torchrun")}
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
            for pid in pids:  # workers whose agent was killed
                if _is_script(pid):
                    os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def limited(self, kill: Callable[[], None]) -> Iterator[None]:
        """Kill the job of the block when the row's time is over."""

        def end(*_: object) -> None:
            kill()
            raise Broken("the row's time is over")

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, max(0.1, self.until - time.monotonic()))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def stamps(self, name: str = "stamps", word: str = "") -> list[Stamp]:
        """Return what workers have written to a file so far, in order; with `word`, those entries alone."""
        path = self.folder / name
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [stamp for stamp in found if word in ("", stamp["word"])]

    def wait_for(self, what: Callable[[], list[Stamp]], count: int = 1) -> list[Stamp]:
        """Wait until `what` returns so many entries, and return them.

        Raises:
            Broken: The row's time is over.
        """
        news = self.folder / "news"  # workers write to it after each entry
        with contextlib.suppress(FileExistsError):
            os.mkfifo(news)
        reader = os.open(news, os.O_RDWR | os.O_NONBLOCK)  # before the first look: no entry comes unheard
        try:
            while len(found := what()) < count:
                ready, _, _ = select.select([reader], [], [], max(0, self.until - time.monotonic()))
                if not ready:
                    raise Broken(f"the row's time is over; workers wrote {self.stamps()[-3:]}")
                os.read(reader, 1 << 16)
        finally:
            os.close(reader)
        return found


class Recovery(NamedTuple):
    """Times from a kill to the last rank's first step after it, in seconds, in the order of the kills."""

    seconds: list[float]

    def words(self) -> str:
        return ", ".join(f"{second:.2f} s" for second in self.seconds)


def recoveries(bench: Bench, name: str, kills: int) -> Recovery:
    """Kill a worker in each of the first generations of a job of `scripts.DDP`, as soon as all ranks have stepped.

    Args:
        bench: The bench on which the job runs.
        name: The file to which its workers write.
        kills: The number of kills.
    """
    times: list[float] = []
    for generation in range(kills):
        ready = bench.wait_for(lambda at=generation: steps(bench, name, at, 5), bench.workers)  # type: ignore[misc]
        victim = max(ready, key=lambda stamp: stamp["rank"])
        began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.kill(victim["pid"], signal.SIGKILL)
        first = bench.wait_for(lambda at=generation: steps(bench, name, at + 1, 1), bench.workers)  # type: ignore[misc]
        times.append((max(stamp["t_ns"] for stamp in first) - began) / 1e9)
    return Recovery(times)


def steps(bench: Bench, name: str, generation: int, step: int) -> list[Stamp]:
    """Return the entries of the ranks of a generation for this step."""
    found = bench.stamps(name, "step")
    return [stamp for stamp in found if (stamp["generation"], stamp["step"]) == (generation, step)]


def _is_script(pid: int) -> bool:
    try:
        return b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
