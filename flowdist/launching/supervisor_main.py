"""The supervisor process of `flowdist.launch`; it dies with the calling process.

python -m flowdist.launching.supervisor_main RUN PARENT [quiet]
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from flowdist.errors import FlowdistError
from flowdist.faults.grammar import NOTHING
from flowdist.graph import decode_graph
from flowdist.runtime.gpus.devices import machine_gpus
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.supervisor.supervisor import Supervisor
from flowdist.runtime.umask import take_umask_of
from flowdist.text.printable import printable
from flowdist.text.queued_output import QueuedOutput
from flowdist.text.streams import print_worker_line


def main(run_dir: Path, parent: int, quiet: bool) -> int:
    """Run the job, and write the reason of its end into the folder of the run; `parent` is the caller's pid.

    Return 0 if the job has succeeded, 130 if it was interrupted, else 1.
    """
    die_with_parent(parent)
    take_umask_of(run_dir)
    graph = decode_graph((run_dir / "graph.json").read_bytes())

    def show(kind: str, text: str) -> None:
        if kind in ("warning", "error"):  # the caller raises what the job has failed of
            print(f"flowdist: {printable(text)}", file=sys.stderr, flush=True)
        elif kind in ("stdout", "stderr") and not quiet:
            print_worker_line(text, sys.stdout if kind == "stdout" else sys.stderr)

    try:
        with QueuedOutput():
            result = asyncio.run(Supervisor(graph, machine_gpus(os.environ), NOTHING, run_dir, show).run())
    except FlowdistError as error:
        (run_dir / "reason.txt").write_text(error.message)
        return 1
    except KeyboardInterrupt:
        return 130
    (run_dir / "reason.txt").write_text(result.reason)
    return 0 if result.outcome == "succeeded" else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), "quiet" in sys.argv[3:]))
