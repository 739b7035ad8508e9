"""The error file of the process that has started flowdist: it gets the error of the worker that failed first.

A launcher around flowdist, such as a scheduler of TorchX or another torchrun, names the file by TORCHELASTIC_ERROR_FILE
and reads from it why the job has failed. torchrun copies the error file of the worker that failed first there, with
the worker's exit code; where that worker has left none, torchrun writes nothing.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowdist.control.protocol.events import ReplicaExited
from flowdist.runtime.atomic import write_atomically
from flowdist.runtime.left_files import read_small
from flowdist.runtime.run_folder.root_cause import Ended, failed_workers
from flowdist.runtime.worker_env.worker_errors import ERROR_BYTES_MAX, read_error_file

VARIABLE = "TORCHELASTIC_ERROR_FILE"


def write_outer_error_file(job: Ended, run_dir: Path, env: Mapping[str, str], mask: Callable[[str], str] = str) -> str:
    """Write the error of the worker that ended the job to the file that TORCHELASTIC_ERROR_FILE names, if it is set.

    Args:
        job: The job, which has failed.
        run_dir: The folder of the run.
        env: The environment variables.
        mask: Returns a text with the values of secrets hidden.

    Returns:
        Why the file could not be written, for the user; empty if it was written or there is nothing to write.
    """
    path = env.get(VARIABLE, "")
    found = _first_error(job, run_dir) if path else None
    if found is None:
        return ""
    content, exited = found
    message = content["message"]
    if isinstance(message, dict):  # a message that is a text is left as it is: torchrun does the same
        message["errorCode"] = exit_code_of(exited)
    try:
        write_atomically(Path(path), mask(json.dumps(content)))
    except OSError as error:
        return f"{VARIABLE}={path} cannot be written: {error.strerror}"
    return ""


def _first_error(job: Ended, run_dir: Path) -> tuple[dict[str, Any], ReplicaExited | None] | None:
    """Return the content of the first usable error file of the workers that ended the job, and the failure as reported.

    Returns:
        None if there is no such file. The report is None if the worker failed in an earlier attempt.
    """
    for folder, exited in failed_workers(job, run_dir):
        if read_error_file(folder) is not None:
            data = read_small(folder / "error.json", ERROR_BYTES_MAX) or b""
            content: dict[str, Any] = json.loads(data.decode(errors="replace"))
            return content, exited
    return None


def exit_code_of(exited: ReplicaExited | None) -> int:
    """Return the exit code of the worker that failed first, negative for a signal as torch has it; 1 if unknown."""
    if exited is None:
        return 1
    number = signal.Signals.__members__.get(f"SIG{exited.signal}")
    return -int(number) if number is not None else exited.exit_code or 1
