"""The error report of a worker that failed on a joined host: its error file and an excerpt of its stderr.

The agent sends it to the controller, which saves it in the folder of the run. The whole logs stay on the joined host.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.runtime.left_files import read_small
from flowdist.runtime.wire.frames import RemoteErrorReport
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.worker_errors import ERROR_BYTES_MAX, lines_of_failure

LINES_MAX = 15


def collect_report(start: StartReplica, local_rank: int, folder: Path, mask: Mask) -> RemoteErrorReport:
    """Return a failed worker's error report, masked; an error file that is missing or too large is empty in it."""
    text = (read_small(folder / "error.json", ERROR_BYTES_MAX) or b"").decode(errors="replace")
    lines = "".join(f"{line}\n" for line in lines_of_failure(folder / "stderr.log", LINES_MAX))
    texts = [_within_limit(mask(each)) for each in (text, lines)]
    return RemoteErrorReport(start.node, start.replica, start.attempt, local_rank, *texts)


def _within_limit(text: str) -> str:
    """Return the text, or nothing if it is too long to be sent: bytes that are no UTF-8 take more room than before."""
    return text if len(text.encode()) <= ERROR_BYTES_MAX else ""


def save_report(report: RemoteErrorReport, job: JobState, run_dir: Path) -> None:
    """Save a report of another host where the worker's logs would be if the worker were on this host.

    A report is ignored if the job knows no such worker, if the replica has another attempt or node by now, if the
    folder exists already, or if nothing can be written there, as on a full disk.
    """
    replica = job.replicas.get(report.replica)
    if replica is None or report.attempt != replica.attempt or replica.node != report.node:
        return
    if not 0 <= report.local_rank < replica.procs:
        return
    if len(report.error) > ERROR_BYTES_MAX or len(report.last_lines) > ERROR_BYTES_MAX:
        return  # `collect_report` sends no such text
    attempt = run_dir / report.replica.role / str(report.replica.index) / f"attempt_{report.attempt}"
    folder = attempt / str(report.local_rank)
    with contextlib.suppress(OSError):  # FileExistsError, too
        folder.mkdir(parents=True)
        for name, content in (("error.json", report.error), ("stderr.log", report.last_lines)):
            if content:
                (folder / name).write_text(content)
        (folder / "node").write_text(f"{report.node}\n")
