"""The root cause of a failed job: the traceback of the worker that failed first, if it has left one.

A launcher around flowdist (TorchX, another torchrun) reads it from the file that TORCHELASTIC_ERROR_FILE names.
torchrun copies that worker's error file there, with its exit code; where it has left none, torchrun writes nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flowdist.control.protocol.events import ReplicaExited
from flowdist.control.protocol.ids import ReplicaId
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.left_files import read_small
from flowdist.runtime.run_folder.remote_error_report import LINES_MAX
from flowdist.runtime.worker_env.worker_errors import ERROR_BYTES_MAX, lines_of_failure, raised_ns, read_error_file
from flowdist.text.printable import one_line, printable, worker_line

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
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
    """Return the traceback, or else the last stderr lines, of the worker whose failure has ended the job; else empty.

    It is the worker that failed first, of the first such replica that has left either. One that was killed may have
    written nothing about that: its last lines are then not called the cause.
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

    Of error files the earliest counts, as another worker may end sooner. A worker without one failed first if the
    report says so. Without a report of the last attempt, all of its workers are returned.
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


def write_outer_error_file(job: Ended, run_dir: Path, env: Mapping[str, str], mask: Callable[[str], str] = str) -> str:
    """Write the error of the worker that ended the job to the file in TORCHELASTIC_ERROR_FILE, if that is set.

    Return why it could not be written; empty if it was, or there is nothing to write.
    """
    path = env.get(ERROR_FILE, "")
    failed = failed_workers(job, run_dir) if path else []
    first = next(((folder, exited) for folder, exited in failed if read_error_file(folder) is not None), None)
    if first is None:
        return ""
    folder, exited = first
    data = read_small(folder / "error.json", ERROR_BYTES_MAX) or b""
    content: dict[str, Any] = json.loads(data.decode(errors="replace"))
    message = content["message"]
    if isinstance(message, dict):  # a message that is a text is left as it is: torchrun does the same
        message["errorCode"] = exit_code_of(exited)
    try:
        write_atomically(Path(path), mask(json.dumps(content)))
    except OSError as error:
        return f"{ERROR_FILE}={path} cannot be written: {error.strerror}"
    return ""


def exit_code_of(exited: ReplicaExited | None) -> int:
    """Return the exit code of the worker that failed first, negative for a signal as torch has it; 1 if unknown."""
    if exited is None:
        return 1
    number = signal.Signals.__members__.get(f"SIG{exited.signal}")
    return -int(number) if number is not None else exited.exit_code or 1
