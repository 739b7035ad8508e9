"""How workers are told that they will have to stop, and say how far they are (R14).

Two files, as both sides must be able to look at any time without waiting for the other: the agent's `notice` and each
worker's `asked`. A worker writes the step that it asks about, then looks for a notice; the agent writes the notice,
then reads the steps. So a worker that has seen no notice is never further than what the agent reads.
`flowdist.worker.should_stop` is the other side.
"""

from __future__ import annotations

import json
from pathlib import Path

from flowdist.runtime.run_folder.atomic import write_atomically

NOTICE = "notice.json"
ASKED = "asked"


def ask(folder: Path, procs: int) -> int | None:
    """Have the workers of an attempt wait at their next should_stop(). Returns the furthest step that one asked about.

    None: at least one has never asked.
    """
    _write(folder, {"ask": True})
    steps = [_asked(folder / str(local_rank) / ASKED) for local_rank in range(procs)]
    known = [step for step in steps if step is not None]
    return max(known) if len(known) == procs else None


def tell(folder: Path, step: int | None) -> None:
    """The step at which should_stop() turns true; None: at once."""
    _write(folder, {"stop_at": step})


def _write(folder: Path, content: dict[str, int | bool | None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / NOTICE, json.dumps(content))


def _asked(path: Path) -> int | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return int.from_bytes(data, "little", signed=True) if len(data) == 8 else None
