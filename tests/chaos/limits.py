"""Few open files and processes, no shared memory, and a wall clock that is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.chaos.job import TRAINER, expect, expect_end, expect_result, expect_whole, last_line, restarts, write_job
from tests.chaos.row import Row
from tests.runtime.harness import Job

REACHES_FILES = "+dac_override,+dac_read_search"
AS_NOBODY = (
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--inh-caps={REACHES_FILES}", f"--ambient-caps={REACHES_FILES}"),
)
SET_CLOCK = """
import datetime, os, time

_time, _time_ns = time.time, time.time_ns


def _ahead_s():
    try:
        return int(open(os.environ["CLOCK_AHEAD"]).read() or 0)
    except OSError:
        return 0


time.time = lambda: _time() + _ahead_s()
time.time_ns = lambda: _time_ns() + _ahead_s() * 10**9
"""
HANG_AFTER = ', hang_after="4s"'


def limited(*prlimit: str) -> Callable[[Path], str]:
    """Return the function that runs the job under these limits."""

    def play(folder: Path) -> str:
        write_job(folder)
        with Job(folder, before=("prlimit", *prlimit)) as job:
            code = job.finish()
            expect_whole(job)
            if code == 0:
                expect_result(folder)
                return f"the job has succeeded; {restarts(job)}"
            cause = next((line for line in job.output if "Too many open files" in line or "unavailable" in line), "")
            expect(code in (1, 2) and cause, f"exit code {code} without a cause: {last_line(job)}")
            return f"exit code {code}: {cause.strip()[:100]}"

    return play


def few_processes(folder: Path) -> str:
    """Run the job as a user who may have few processes. The limit does not count for root."""
    write_job(folder)
    with Job(folder, before=("prlimit", "--nproc=8", *(() if os.getuid() else AS_NOBODY))) as job:
        code = job.finish()
        expect_whole(job)
        cause = next((line for line in job.output if "see `ulimit -u`" in line), "")
        expect(code in (1, 2, 70) and cause, f"exit code {code} without a cause: {last_line(job)}")
        return f"exit code {code}: {cause.strip()[:100]}"


def no_shared_memory(folder: Path) -> str:
    """Run the job where /dev/shm cannot be written."""
    write_job(folder)
    mount = 'mount -t tmpfs -o ro none /dev/shm && exec "$@"'
    with Job(folder, before=("unshare", "-Urm", "sh", "-c", mount, "sh")) as job:
        expect_end(job)
        expect_result(folder)
        return restarts(job)


def clock(ahead_s: int) -> Callable[[Path], str]:
    """Return the function that sets the wall clock by so much in the middle of the run, as all its Pythons see it."""

    def play(folder: Path) -> str:
        write_job(folder)
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(SET_CLOCK)
        topology = (
            (folder / "topology.py").read_text().replace('preload=["decimal"]', 'preload=["decimal"]' + HANG_AFTER)
        )
        (folder / "topology.py").write_text(topology)
        (folder / "trainer.py").write_text(TRAINER.replace("STEPS", "400").replace("worker.progress(step)", ""))
        path = os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH", "")]))
        with Job(folder, env={"PYTHONPATH": path, "CLOCK_AHEAD": str(folder / "ahead")}) as job:
            job.until("at step 60")
            (folder / "ahead").write_text(str(ahead_s))
            expect_end(job)
            expect_result(folder)
            expect(restarts(job) == "no worker restarted", restarts(job))
            return restarts(job)

    return play


CAUSE = "the job succeeds, or ends with the cause"
SAME = "no worker restarts, no hang is seen, and the job ends with its undisturbed result"
ROWS = [
    Row("files-64", "`ulimit -n 64`", CAUSE, limited("--nofile=64")),
    Row("files-16", "`ulimit -n 16`", CAUSE, limited("--nofile=16")),
    Row("processes-8", "`ulimit -u 8`, not as root", "the run ends with the cause", few_processes),
    Row("no-shm", "no /dev/shm that can be written", SAME, no_shared_memory, needs_mount=True),
    Row("clock-forward", "the wall clock is set forward by an hour", SAME, clock(3600)),
    Row("clock-back", "the wall clock is set back by an hour", SAME, clock(-3600)),
]
