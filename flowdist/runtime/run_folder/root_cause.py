"""The root cause of a failed job: the traceback of the worker that failed first, if it has left one."""

from __future__ import annotations

import os
from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.runtime.left_files import read_small
from flowdist.runtime.run_folder.remote_error_report import LINES_MAX
from flowdist.runtime.worker_env.worker_errors import last_lines, raised_ns, read_error_file
from flowdist.text.printable import one_line, printable, worker_line

# Explanations for last lines that do not name their cause.
HELP = {
    "terminate called without an active exception": (
        "if its work was done, torch aborted it at its exit: end the script with dist.destroy_process_group()"
    ),
}


def root_cause_text(job: JobState, run_dir: Path) -> str:
    """Return the traceback, or else the last lines of stderr, of a worker whose failure has ended the job.

    It is the first worker that has left either, of the replicas that the reason of the job's end names.

    Returns:
        The text for the terminal; empty if no such worker has left anything.
    """
    for folder in failed_workers(job, run_dir):
        error = read_error_file(folder)
        lines = error.traceback.splitlines() if error is not None else []
        lines = lines or last_lines(folder / "stderr.log", LINES_MAX)
        if lines:
            lines = [printable(worker_line(line, colours=False)) for line in lines]
            help = [f"help: {text}" for sign, text in HELP.items() if sign in lines]
            return "\n".join([f"Root cause, from {_place(folder)}:", *(f"  {line}" for line in lines), *help]) + "\n"
    return ""


def _place(folder: Path) -> str:
    """Return where a worker's logs are, for the terminal: their folder, after the node if that is on another host."""
    node = one_line((read_small(folder / "node", 1000) or b"").decode(errors="replace").strip())
    return f"{node}, {Path(*folder.parts[-4:])}" if node else str(folder)


def failed_workers(job: JobState, run_dir: Path) -> list[Path]:
    """Return the folders of the workers of the replicas that the reason of the job's end names, in their last attempts.

    The replicas are in the order of the graph, the workers of each replica in the order of their failures.
    """
    named = [replica for replica in job.replicas.values() if str(replica.id) in job.ending_reason.split()]
    folders: list[Path] = []
    for replica in named:
        base = run_dir / replica.id.role / str(replica.id.index)
        numbers = [path.name.removeprefix("attempt_") for path in base.glob("attempt_*")]
        last = max((int(number) for number in numbers if number.isdecimal()), default=None)
        if last is not None:
            found = (base / f"attempt_{last}").glob("*")
            workers = sorted(path for path in found if path.name.isdecimal() and os.path.isdir(path))  # noqa: PTH112
            # by the time of the error file; workers without one come last
            folders += sorted(workers, key=lambda folder: raised_ns(folder) or float("inf"))
    return folders
