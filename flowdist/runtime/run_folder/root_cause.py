"""Why the job failed, with the traceback of the worker that failed first, if it left one."""

from __future__ import annotations

from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.runtime.worker_env.worker_errors import last_lines, raised_ns, read_error_file

# What says nothing of its cause to whoever has not met it before.
HELP = {
    "terminate called without an active exception": (
        "if it had done its work, torch ended it as it left: end the script with dist.destroy_process_group()"
    ),
}


def root_cause_text(job: JobState, run_dir: Path) -> str:
    """The last failure that was not a membership change: its first failing worker's traceback, or its last lines."""
    for folder in _suspects(job, run_dir):
        error = read_error_file(folder)
        lines = error["traceback"].splitlines() if error is not None and error["traceback"] else []
        lines = lines or last_lines(folder / "stderr.log", 15)
        if lines:
            help = [f"help: {text}" for sign, text in HELP.items() if sign in lines]
            return "\n".join([f"Root cause, from {_place(folder)}:", *(f"  {line}" for line in lines), *help]) + "\n"
    return ""


def _place(folder: Path) -> str:
    """The folder of a worker's logs; of a worker on another host the name of its node, where they are."""
    try:
        return f"{(folder / 'node').read_text().strip()}, {Path(*folder.parts[-4:])}"
    except OSError:
        return str(folder)


def _suspects(job: JobState, run_dir: Path) -> list[Path]:
    """Folders of the workers that the reason speaks of, latest attempt first, error files first."""
    named = [replica for replica in job.replicas.values() if str(replica.id) in job.ending_reason.split()]
    folders: list[Path] = []
    for replica in named:
        base = run_dir / replica.id.role / str(replica.id.index)
        attempts = sorted(base.glob("attempt_*"), key=lambda path: int(path.name.partition("_")[2]), reverse=True)
        for attempt in attempts[:1]:
            workers = sorted(path for path in attempt.iterdir() if path.is_dir())
            folders += sorted(workers, key=_failed_at)
    return folders


def _failed_at(folder: Path) -> float:
    """Who wrote no error file comes last."""
    at_ns = raised_ns(folder)
    return float("inf") if at_ns is None else at_ns
