"""What a worker that failed on another host has left of itself, brought to the folder of the run on the controller's.

Its logs stay where it ran; its error file and last lines are enough to say what was wrong.
"""

from __future__ import annotations

from pathlib import Path

from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.runtime.wire.frames import Evidence
from flowdist.runtime.worker_env.secret_values import Mask
from flowdist.runtime.worker_env.worker_errors import last_lines

ERROR_BYTES_MAX = 256 << 10
LINES = 15


def gather(start: StartReplica, local_rank: int, folder: Path, mask: Mask) -> Evidence:
    """Of one worker, from the folder of its logs."""
    try:
        with (folder / "error.json").open("rb") as file:
            error = file.read(ERROR_BYTES_MAX + 1)
    except OSError:
        error = b""
    text = error.decode(errors="replace") if len(error) <= ERROR_BYTES_MAX else ""
    lines = "".join(f"{line}\n" for line in last_lines(folder / "stderr.log", LINES))
    return Evidence(start.node, start.replica, start.attempt, local_rank, mask(text), mask(lines))


def keep(evidence: Evidence, job: JobState, run_dir: Path) -> None:
    """Where the logs of the worker would be. What is of no worker of the job, or there already, changes nothing."""
    replica = job.replicas.get(evidence.replica)
    if replica is None or evidence.attempt != replica.attempt or replica.node != evidence.node:
        return
    if not 0 <= evidence.local_rank < replica.procs:
        return
    attempt = run_dir / evidence.replica.role / str(evidence.replica.index) / f"attempt_{evidence.attempt}"
    folder = attempt / str(evidence.local_rank)
    if not folder.exists():
        folder.mkdir(parents=True)
        for name, content in (("error.json", evidence.error), ("stderr.log", evidence.last_lines)):
            if content:
                (folder / name).write_text(content)
        (folder / "node").write_text(f"{evidence.node}\n")
