"""Cases of PyTorch's test/distributed/elastic/multiprocessing/errors: error files and the root cause."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from flowdist import Topology
from flowdist.control.job.state import JobState
from flowdist.runtime.processes.spawn_protocol import describe_exit
from flowdist.runtime.run_folder.root_cause import ERROR_FILE, root_cause_text, write_outer_error_file
from flowdist.runtime.worker_env.worker_errors import error_line, read_error_file
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of
from tests.peers.case import Case, holds
from tests.peers.launcher import outer_file
from tests.peers.processes import SHELL_CODE, exits
from tests.peers.runs import Runs

API, HANDLER = "errors/api_test.py", "errors/error_handler_test.py"


def recorded(message: str, timestamp: str = "10") -> dict[str, Any]:
    """Return the content of an error file as torch's @record writes it."""
    extra = {"py_callstack": f"Traceback (most recent call last):\n{message}\n", "timestamp": timestamp}
    return {"message": {"message": message, "extraInfo": extra}}


def failed_job(runs: Runs, name: str, errors: list[Any]) -> tuple[JobState, Path]:
    """Return a failed job whose workers have left these error files, the last one first; None: none."""

    def make(folder: Path) -> tuple[JobState, Path]:
        t = Topology("job", nodes=1)
        t.role("trainer", "true", replicas=f"1x{len(errors)}", restart=None)
        for rank, error in enumerate(errors):
            worker = folder / f"trainer/0/attempt_1/{rank}"
            worker.mkdir(parents=True)
            if error is not None:
                (worker / "error.json").write_text(json.dumps(error))
                os.utime(worker / "error.json", (1000 - rank, 1000 - rank))
        return simulate(graph_of(t), "trainer/0@10s:exit=1").job, folder

    found: tuple[JobState, Path] = runs.once(f"errors-{name}", make)
    return found


def line_of(runs: Runs, name: str, error: Any) -> str:
    """Return the error of a worker with this error file, in one line."""
    _, folder = failed_job(runs, name, [error])
    return error_line(folder / "trainer/0/attempt_1/0")


def odd_file(runs: Runs) -> None:
    _, folder = failed_job(runs, "odd", [{"unknown_key": "unknown_value"}])
    assert read_error_file(folder / "trainer/0/attempt_1/0") is None


def first_failure(runs: Runs) -> None:
    job, folder = failed_job(
        runs, "three", [recorded("SentinelError: rank 0"), recorded("SentinelError: rank 1"), None]
    )
    assert "SentinelError: rank 1" in root_cause_text(job, folder)  # it has written its error file first
    assert "rank 0" not in root_cause_text(job, folder)


def passed_on(runs: Runs, name: str, error: Any, before: str = "") -> dict[str, Any] | None:
    """Return what the launcher's own error file has after a job with this error; None if there is no such file."""
    job, folder = failed_job(runs, name, [error])
    outer = folder / "outer.json"
    if before:
        outer.write_text(before)
    assert write_outer_error_file(job, folder, {ERROR_FILE: str(outer)}) == ""
    return json.loads(outer.read_text()) if outer.exists() else None


def child_failure(runs: Runs) -> None:
    expected = recorded("SentinelError: foobar")
    expected["message"]["errorCode"] = 1
    assert passed_on(runs, "child", recorded("SentinelError: foobar")) == expected


def overwritten(runs: Runs) -> None:
    content = passed_on(runs, "bar", recorded("RuntimeError: bar"), json.dumps(recorded("RuntimeError: foo")))
    assert content is not None and content["message"]["message"] == "RuntimeError: bar"


CASES = [
    Case(
        API,
        "test_failure_incorrect_reply_file",
        "an error file without a message is an exception there; here the worker's exit is reported without it",
        odd_file,
        "differs",
        "evidence/chaos.md: a worker's error file is odd",
    ),
    Case(
        API,
        "test_process_failure_new_format",
        "a message that is a text is the error",
        lambda runs: holds(
            line_of(runs, "new", {"message": "test error message", "timestamp": 10}) == "test error message"
        ),
    ),
    Case(
        API,
        "test_process_mast_error_format",
        "so it is with a timestamp that is a text",
        lambda runs: holds(
            line_of(runs, "mast", {"message": "test error message", "timestamp": "10"}) == "test error message"
        ),
    ),
    Case(
        API,
        "test_process_failure",
        "the message of @record is the error",
        lambda runs: holds(line_of(runs, "plain", recorded("SentinelError: foobar")) == "SentinelError: foobar"),
    ),
    Case(
        API,
        "test_process_failure_signal",
        "a segmentation fault is named",
        lambda runs: holds("SEGV" in describe_exit(-11)),
    ),
    Case(
        API,
        "test_process_failure_no_error_file",
        "exit code 138 without an error file is that code; here it is read as SIGUSR1",
        exits,
        "differs",
        SHELL_CODE,
        True,
    ),
    Case(API, "test_child_failed_error", "of three failures, the first error file is the root cause", first_failure),
    Case(API, "test_record", "an exception below @record reaches the launcher's error file", outer_file, is_real=True),
    Case(
        API,
        "test_record_child_failure",
        "the launcher's error file is that of the worker, with its exit code as errorCode",
        child_failure,
    ),
    Case(
        API,
        "test_record_child_failure_no_child_error_file",
        "without an error file of the worker there is none of the launcher",
        lambda runs: holds(passed_on(runs, "none", None) is None),
    ),
    Case(
        API,
        "test_child_failed_error_signal_name_in_message",
        "the message has the name of the signal",
        lambda runs: holds("SEGV" in describe_exit(-11)),
    ),
    Case(HANDLER, "test_dump_error_file", "the launcher's error file gets the worker's", child_failure),
    Case(HANDLER, "test_dump_error_file_overwrite_existing", "an older error file is replaced", overwritten),
]
