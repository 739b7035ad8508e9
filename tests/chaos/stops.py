"""Processes of flowdist that stand still for a while, one at a time and in pairs."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from tests.chaos.job import PROCESSES, expect_end, expect_result, processes, restarts, write_job
from tests.chaos.row import Row
from tests.runtime.harness import Job

RESULT = "the job ends with its undisturbed result, and no rank ever runs twice at once"


def stop(names: tuple[str, ...], lasts_s: float) -> Callable[[Path], str]:
    """Return the function that stops these processes of the node of trainer/0 for so long."""

    def play(folder: Path) -> str:
        write_job(folder)
        began = time.monotonic()
        with Job(folder) as job:
            job.until("at step 60")
            pids = [processes(job)[name] for name in names]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            Event().wait(lasts_s)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the run has ended without it
                    os.kill(pid, signal.SIGCONT)
            expect_end(job)
            expect_result(folder)
            return f"{restarts(job)}; {time.monotonic() - began:.0f} s in all"

    return play


ROWS = [
    Row(
        f"stop-{name.replace(' ', '-')}-{lasts_s}s",
        f"SIGSTOP of the {name} for {lasts_s} s",
        RESULT,
        stop((name,), lasts_s),
        is_quick=(name, lasts_s) in {("agent", 1), ("controller", 1)},
    )
    for name in PROCESSES
    for lasts_s in (1, 5, 20)
] + [
    Row(
        f"stop-{one.replace(' ', '-')}-and-{other.replace(' ', '-')}",
        f"SIGSTOP of {one} and {other} for 5 s",
        RESULT,
        stop((one, other), 5),
    )
    for one, other in itertools.combinations(PROCESSES, 2)
]
