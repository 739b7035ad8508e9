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

UNWATCHED = (
    "nothing is left on the node that could end its lease: an attempt may run on beside the one that replaces it, but "
    "its checkpoints are refused, and the job ends with its undisturbed result"
)
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
            if is_unwatched(names) and (folder / "two-at-once").exists():
                (folder / "two-at-once").unlink()
                expect_result(folder)
                return f"two attempts ran at once; {restarts(job)}; {time.monotonic() - began:.0f} s in all"
            expect_result(folder)
            return f"{restarts(job)}; {time.monotonic() - began:.0f} s in all"

    return play


def is_unwatched(names: tuple[str, ...]) -> bool:
    """Return whether both the agent and the guardian, which watches its lease, stand still."""
    return {"agent", "guardian"} <= set(names)


ROWS = [
    Row(
        f"stop-{name.replace(' ', '-')}-{lasts_s}s",
        f"SIGSTOP of the {name} for {lasts_s} s",
        RESULT,
        stop((name,), lasts_s),
        is_quick=(name, lasts_s) == ("agent", 1),
    )
    for name in PROCESSES
    for lasts_s in (1, 5, 20)
] + [
    Row(
        f"stop-{one.replace(' ', '-')}-and-{other.replace(' ', '-')}",
        f"SIGSTOP of {one} and {other} for 5 s",
        UNWATCHED if is_unwatched((one, other)) else RESULT,
        stop((one, other), 5),
    )
    for one, other in itertools.combinations(PROCESSES, 2)
]
