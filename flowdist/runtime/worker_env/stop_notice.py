"""The agent's side of the agreement on a last step (R14): it announces a stop, and reads how far its workers are.

The agreement is kept in files, which either side can read without waiting for the other: `notice.json`, written by the
agent, and one file `asked` for each worker. A worker first writes the step that it asks about and then looks for a
notice; the agent first writes the notice and then reads the steps. A worker that has seen no notice is therefore never
further than the step that the agent reads. Behind the step, a worker notes that `should_stop()` returns True.
`flowdist.worker.should_stop` is the workers' side.
"""

from __future__ import annotations

from pathlib import Path

from flowdist.runtime.atomic import write_json
from flowdist.runtime.left_files import read_small

NOTICE = "notice.json"
ASKED = "asked"
STEP_BYTES = 8


def announce_stop(folder: Path, procs: int) -> int | None:
    """Write the notice of a stop, and return the highest step that a worker has passed to `should_stop()`.

    None if any of the `procs` workers has never called it. Each waits in its next call until `set_stop_step`. OSError
    if the notice cannot be written.
    """
    write_json(folder / NOTICE, {"ask": True})
    steps = [_asked_step(folder / str(local_rank) / ASKED) for local_rank in range(procs)]
    known = [step for step in steps if step is not None]
    return max(known) if len(known) == procs else None


def set_stop_step(folder: Path, step: int | None) -> None:
    """Write the agreed step into the notice, which ends the wait of the workers in `should_stop()`.

    None: it turns true at once in each worker, whatever its step is. OSError if the notice cannot be written.
    """
    write_json(folder / NOTICE, {"stop_at": step})


def was_stopping(folder: Path) -> bool:
    """Return whether `should_stop()` has returned True in a worker. `folder` is the worker's own."""
    return (read_small(folder / ASKED, STEP_BYTES + 1) or b"")[STEP_BYTES:] == b"\1"


def _asked_step(path: Path) -> int | None:
    data = read_small(path, STEP_BYTES + 1)
    return int.from_bytes(data[:STEP_BYTES], "little", signed=True) if data and len(data) >= STEP_BYTES else None
