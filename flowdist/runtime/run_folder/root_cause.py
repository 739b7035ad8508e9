"""The root cause of a failed job: the traceback of the worker that failed first, if it has left one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.left_files import read_small
from flowdist.runtime.run_folder.remote_error_report import LINES_MAX
from flowdist.runtime.worker_env.worker_errors import lines_of_failure, raised_ns, read_error_file
from flowdist.text.printable import one_line, printable, worker_line

# Explanations for last lines that do not name their cause.
HELP = {
    "terminate called without an active exception": (
        "if its work was done, torch aborted it at its exit: end the script with dist.destroy_process_group()"
    ),
    "ModuleNotFoundError: No module named 'torch'": (
        f"install torch for the Python that runs the workers: {sys.executable} -m pip install torch"
    ),
}


class ReplicaEnd(Protocol):
    """A replica with the last report of its failure, if there was one."""

    id: ReplicaId
    exited: ReplicaExited | None


class Ended(Protocol):
    """A job that has ended: its state, or what a joined host knows of it."""

    @property
    def ending_failed(self) -> Sequence[ReplicaId]:
        """The replicas whose failure has ended the job."""

    @property
    def replicas(self) -> Mapping[ReplicaId, ReplicaEnd]:
        """The replicas of the job; at least those that have failed."""


def root_cause_text(job: Ended, run_dir: Path) -> str:
    """Return the traceback, or else the last lines of stderr, of a worker whose failure has ended the job.

    It is the worker that failed first, of the first replica whose failure has ended the job and that has left
    either. A worker that was killed may have written nothing about that: then the text does not call its last lines the
    cause.

    Returns:
        The text for the terminal; empty if no such worker has left anything.
    """
    for folder, exited in failed_workers(job, run_dir):
        error = read_error_file(folder)
        lines = error.traceback.splitlines() if error is not None else []
        lines = lines or lines_of_failure(folder / "stderr.log", LINES_MAX)
        if lines:
            lines = [printable(worker_line(line, colours=False)) for line in lines]
            help = [f"help: {text}" for sign, text in HELP.items() if sign in lines]
            title = _title(exited) if exited is not None and error is None else "Root cause"
            return "\n".join([f"{title}, from {_place(folder)}:", *(f"  {line}" for line in lines), *help]) + "\n"
    return ""


def _title(exited: ReplicaExited) -> str:
    """Return what the last lines of a failed worker are called: not the cause, if a signal came from outside."""
    was_killed = exited.kind in ("signal", "oom") and exited.signal and not exited.detail
    return f"Last lines before SIG{exited.signal}" if was_killed else "Root cause"


def _place(folder: Path) -> str:
    """Return where a worker's logs are, for the terminal: their folder, after the node if that is on another host."""
    node = one_line((read_small(folder / "node", 1000) or b"").decode(errors="replace").strip())
    return f"{node}, {Path(*folder.parts[-4:])}" if node else str(folder)


def failed_workers(job: Ended, run_dir: Path) -> list[tuple[Path, ReplicaExited | None]]:
    """Return the folders of the workers that failed first, of the replicas whose failure has ended the job.

    Of several workers with an error file, that of the earliest failed
    first: another may end sooner. A worker without one is believed to have failed first if the report says so. Without
    a report of the last attempt, the folders of all of its workers are returned.
    """
    folders: list[tuple[Path, ReplicaExited | None]] = []
    for replica in (job.replicas[failed] for failed in job.ending_failed if failed in job.replicas):
        base = run_dir / replica.id.role / str(replica.id.index)
        numbers = [path.name.removeprefix("attempt_") for path in base.glob("attempt_*") if not path.is_symlink()]
        last = max((int(number) for number in numbers if number.isdecimal()), default=None)
        if last is None:
            continue
        attempt, exited = base / f"attempt_{last}", replica.exited
        workers = _by_error_file(attempt)
        if exited is None or exited.attempt != last:
            folders += [(folder, None) for folder in workers]
            continue
        reported = attempt / str(exited.local_rank)
        has_raised = raised_ns(reported) is not None
        folders.append((workers[0] if has_raised else reported, exited))
    return folders


def _by_error_file(attempt: Path) -> list[Path]:
    """Return the folders of the workers of an attempt by the times of their error files; those without come last."""
    found = (path for path in attempt.glob("*") if path.name.isdecimal() and not path.is_symlink())
    folders = (path for path in found if os.path.isdir(path))  # noqa: PTH112
    return sorted(folders, key=lambda folder: (raised_ns(folder) or float("inf"), int(folder.name)))
