"""SIGKILL of one to three random processes of flowdist at random moments, then `--resume`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.chaos.job import (
    Broken,
    expect_result,
    own_processes,
    read_in_background,
    resume_until_over,
    undisturbed,
    write_job,
)
from tests.chaos.row import Row
from tests.runtime.harness import Job

STEPS = 200
AT_ONCE = 4  # runs beside each other


def kill_one_run(folder: Path, seed: int, within_s: float) -> str:
    """Kill one to three random processes of one run at one random moment, and resume what ends by that.

    Args:
        folder: An empty folder.
        seed: Draws the moment and the processes.
        within_s: The moment lies in the first so many seconds.

    Returns:
        What was killed, in words.
    """
    draw = random.Random(seed)
    write_job(folder, steps=STEPS)
    job = Job(folder)
    reader = read_in_background(job)
    try:
        Event().wait(draw.uniform(0, within_s))
        pids = sorted(own_processes(job))
        victims = draw.sample(pids, min(len(pids), draw.randint(1, 3)))
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        resumed = resume_until_over(folder, job, reader)
    finally:
        job.__exit__(None, None, None)
    expect_result(folder, STEPS)
    return f"{len(victims)} killed, {resumed} times resumed"


def kill_many(count: int, first_seed: int = 1) -> Callable[[Path], str]:
    """Return the function that plays so many runs, each with a random moment of its own."""

    def play(folder: Path) -> str:
        within_s = _undisturbed_s(folder)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            results = list(
                pool.map(lambda seed: _result_of(folder, seed, within_s), range(first_seed, first_seed + count))
            )
        wrong = [result for result in results if result]
        if wrong:
            raise Broken(f"{len(wrong)} of {count}: {'; '.join(wrong)}")
        return f"{count} of {count} ended with the undisturbed result"

    return play


def _undisturbed_s(folder: Path) -> float:
    """Return how long a run lasts, beside as many others as there will be."""

    def run(number: int) -> float:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            write_job(Path(own), steps=STEPS)
            began = time.monotonic()
            with Job(Path(own)) as job:
                job.finish()
            if (Path(own) / "result").read_text() != undisturbed(STEPS):
                raise Broken("an undisturbed run has another result")
            return time.monotonic() - began

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return max(pool.map(run, range(AT_ONCE)))


def _result_of(folder: Path, seed: int, within_s: float) -> str:
    """Play one run; return what is wrong, with its seed, or nothing."""
    own = folder / f"seed-{seed}"
    own.mkdir()
    try:
        said = kill_one_run(own, seed, within_s)
    except Exception as error:  # the others go on: a table tells how many went wrong
        return f"seed {seed}: {error}"
    print(f"  seed {seed}: {said}", file=sys.stderr, flush=True)
    return ""


ROWS = [
    Row(
        "kill-200",
        "SIGKILL of 1 to 3 random processes of flowdist at 200 random moments, then `--resume`",
        "200 of 200 runs end with the result of an undisturbed one",
        kill_many(200),
        limit_s=3000.0,
    ),
    Row(
        "kill-2",
        "the same at 2 random moments",
        "2 of 2 runs end with the result of an undisturbed one",
        kill_many(2, 1001),
    ),
]
