"""One job of flowdist on the hosts of a lab, whose workers beat into one file (`beats.py`)."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from flowdist.record.journal import Record
from tests.lab.beats import BEATER, Beat, overlaps, read_beats
from tests.lab.network import Lab
from tests.runtime.harness import Job

PORT = 29400
TOPOLOGY = """
from flowdist import Restart, Topology

t = Topology("lab", nodes="1:{hosts}", controller_outage="{outage}")
t.role("trainer", "python {script}", replicas="1:{hosts}", apart=True, cooldown="0s", join_window="30s",
       restart=Restart("role", max_restarts=100, backoff="0s"))
"""


class BeatingJob:
    """A job with a worker on each host of a lab. The first host runs the controller.

    Args:
        lab: The lab, with nothing on its hosts.
        outage: The topology's `controller_outage`, for `begin`.
        script: What each worker runs; it has to beat, as `BEATER` does.
    """

    def __init__(self, lab: Lab, outage: str = "10m", script: str = BEATER) -> None:
        self.lab, self.jobs = lab, dict[str, Job]()
        self.endpoint = f"{lab.names[0]}:{PORT}"
        self._beats, self._end = lab.folder / "beats", lab.folder / "end"
        self._env = {"LAB_BEATS": str(self._beats), "LAB_END": str(self._end), "FLOWDIST_TOKEN": "of this lab alone"}
        self.script, self.topology = lab.folder / "beater.py", lab.folder / "topology.py"
        self.script.write_text(script)
        text = TOPOLOGY.format(hosts=len(lab.names), script=self.script, outage=outage)
        self.topology.write_text(text)

    def begin(self, *options: str) -> None:
        """`flowdist run --listen` on the first host and `flowdist join` on the others; wait until all workers run."""
        first, *others = self.lab.names
        self._start(first, "run", str(self.topology), "--listen", self.endpoint, *options)
        for host in others:
            self.join(host)
        self._await_all()

    def join(self, host: str) -> None:
        self._start(host, "join", self.endpoint)

    def begin_torchrun(self) -> None:
        """`flowdist torchrun` on all hosts; wait until all workers run."""
        for host in self.lab.names:
            self.torchrun(host)
        self._await_all()

    def torchrun(self, host: str) -> None:
        size = ("--nnodes", f"1:{len(self.lab.names)}", "--max-restarts", "100")
        meeting = ("--rdzv-endpoint", self.endpoint, "--rdzv-conf", "last_call_timeout=60")
        self._start(host, "torchrun", *size, *meeting, str(self.script))

    def _start(self, host: str, verb: str, *words: str) -> None:
        self.jobs[host] = self.lab.start(host, verb, *words, env=self._env)

    @property
    def first(self) -> Job:
        return self.jobs[self.lab.names[0]]

    def await_world(self, size: int, on: str = "") -> None:
        """Wait until a worker on a host, the first one unless another is named, starts in a world of that size."""
        job = self.jobs[on or self.lab.names[0]]
        for line in job.lines():
            if "generation " in line and line.endswith(f" of {size}") and "rank " in line and "starts" not in line:
                return
        raise AssertionError(f"no world of {size}:\n{self.lab.text}")

    def _await_all(self) -> None:
        for host in self.lab.names:
            self.await_world(len(self.lab.names), host)

    def beats(self) -> list[Beat]:
        return read_beats(self._beats)

    def worker(self, host: str) -> int:
        """Return the process id of the worker that has beaten last on a host."""
        return [beat.pid for beat in self.beats() if beat.host == host][-1]

    def kill_worker(self, host: str) -> None:
        os.kill(self.worker(host), signal.SIGKILL)

    def start_ns(self) -> int:
        """Return the start of the job, on CLOCK_BOOTTIME: the times of the journal count from there."""
        return job_start_ns(self.first)

    def events(self, *kinds: type) -> list[Record]:
        """Return the lines of the journal with events of these kinds."""
        return [line for line in self.first.journal()[1] if isinstance(line, Record) and isinstance(line.event, kinds)]

    def end(self, *hosts: str) -> dict[str, int]:
        """Let all workers end; return the exit codes of the commands on these hosts, all hosts unless some are named.

        No two generations have run at the same time, or this fails.
        """
        codes = self.close(*hosts)
        assert overlaps(self.beats()) == [], self.lab.text
        return codes

    def close(self, *hosts: str) -> dict[str, int]:
        """Let all workers end; return the exit codes as `end` does, whatever the workers have written."""
        self._end.touch()
        return {host: self.jobs[host].finish() for host in hosts or self.lab.names}


def job_start_ns(job: Job) -> int:
    """Return the start of the job of `flowdist run`, on CLOCK_BOOTTIME, as its controller got it."""
    (pid, *_) = job.named("flowdist.runtime.controller.controller_main")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    began: int = json.loads(next(word for word in words if word.startswith(b"{")))["start_ns"]
    return began
