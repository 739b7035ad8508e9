"""The claims of a run to its folder of checkpoints and to the id of its job, renewed as long as the run lasts."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from flowdist.control.ownership import RENEW_NS
from flowdist.graph import RoleGraph
from flowdist.runtime.run_folder.owner_file import OWNER, OwnerFile, Show, job_owner_file, new_claim

RELEASE_S = 2.0  # for the last write: a file server may hang
UNNAMED = ("", "none", "flowdist")  # ids of jobs to which the user gave none, the defaults: unrelated jobs have them


def take_claims(
    graph: RoleGraph, base: Path, job: str, run: str, epoch: int, show: Show, check: Callable[[], None]
) -> tuple[OwnerFile, ...]:
    """Take the claims of a run to the folder of `checkpoint_dir=`, and to the id of a job that others join.

    The default folder of checkpoints is in the run's, whose lock no other run gets. `base` has the claims to ids; an
    empty `run` is a new one. An exception of `check` ends a wait. FlowdistError if another run owns one.
    """
    files = []
    if graph.checkpoint_dir:
        folder = Path(graph.checkpoint_dir)
        help = "end that run, or give this one another checkpoint_dir="
        files.append(OwnerFile(folder / OWNER, f"the checkpoint folder {folder}", help, new_claim(run, epoch)))
    if job not in UNNAMED:
        with contextlib.suppress(OSError):
            base.mkdir(0o755, parents=True, exist_ok=True)  # as for the folder of the run
        help = "end that run, join it from this host, or give this one another id (--rdzv-id, --id)"
        files.append(OwnerFile(job_owner_file(base, job), f"job {job!r}", help, new_claim(run, epoch)))
    taken: list[OwnerFile] = []
    try:
        for file in files:
            file.acquire(show, check)
            taken.append(file)
    except BaseException:
        for file in taken:
            file.release()
        raise
    return tuple(taken)


class OwnerKeeper:
    """Renewal of the claims of a run, in a thread: a file server that hangs must not hold up the foreground process.

    `lost` is called in the event loop when another run has taken a claim over, with the reason.
    """

    def __init__(self, files: Sequence[OwnerFile], run: str, lost: Callable[[str], None]) -> None:
        self._files, self._run, self._lost = files, run, lost
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew the claims. Call it in the event loop."""
        if self._files:
            loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._keep, args=(loop,), name="owner files", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop that, and give the claims back. A file server that hangs delays this by RELEASE_S at most."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(RELEASE_S)

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            for file in self._files:
                if lost := file.renew(self._run):
                    loop.call_soon_threadsafe(self._lost, lost)
            if self._over.wait(RENEW_NS / 1e9):
                break
        for file in self._files:
            file.release()
