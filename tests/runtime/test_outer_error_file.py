"""The error file of an outer launcher gets the error of the worker that failed first, as from torchrun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowdist import Topology
from flowdist.control.protocol.events import ReplicaExited
from flowdist.runtime.run_folder.root_cause import ERROR_FILE, exit_code_of, write_outer_error_file
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of
from tests.control.harness import r

ERROR = {"message": {"message": "ValueError: hush", "extraInfo": {"py_callstack": "Traceback", "timestamp": "10"}}}


def written(folder: Path, error: Any, place: str = "outer.json") -> dict[str, Any] | None:
    """Return what a failed job with this error file writes for its outer launcher; None if it writes nothing."""
    t = Topology("job", nodes=1)
    t.role("trainer", "true", restart=None)
    job = simulate(graph_of(t), "trainer/0@10s:exit=3").job
    worker = folder / "trainer/0/attempt_1/0"
    worker.mkdir(parents=True)
    if error is not None:
        (worker / "error.json").write_text(error if isinstance(error, str) else json.dumps(error))
    why = write_outer_error_file(
        job, folder, {ERROR_FILE: str(folder / place)}, lambda text: text.replace("hush", "***")
    )
    assert bool(why) == ("/" in place)
    return json.loads((folder / place).read_text()) if (folder / place).exists() else None


def test_the_error_of_the_worker_is_written_with_its_exit_code_and_without_secrets(tmp_path: Path) -> None:
    content = written(tmp_path, ERROR)
    assert content is not None and content["message"].pop("errorCode") == 3
    assert content["message"] == {**ERROR["message"], "message": "ValueError: ***"}


def test_a_message_that_is_a_text_is_left_as_it_is(tmp_path: Path) -> None:
    assert written(tmp_path, {"message": "it broke", "timestamp": "10"}) == {"message": "it broke", "timestamp": "10"}


@pytest.mark.parametrize("error", [None, "no JSON", "[1]", '{"other": 1}', '{"message": 7}'])
def test_without_a_usable_error_file_nothing_is_written(tmp_path: Path, error: str | None) -> None:
    assert written(tmp_path, error) is None


def test_a_place_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    assert written(tmp_path, ERROR, "missing/outer.json") is None


def test_no_variable_no_file(tmp_path: Path) -> None:
    t = Topology("job", nodes=1)
    t.role("trainer", "true", restart=None)
    job = simulate(graph_of(t), "trainer/0@10s:exit=3").job
    assert write_outer_error_file(job, tmp_path, {}) == "" and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("exited", "code"),
    [
        (ReplicaExited(r("trainer/0"), 1, "exit", 3, detail="signal SIGKILL"), 3),
        (ReplicaExited(r("trainer/0"), 1, "signal", 0, "SEGV", detail="exit code 7"), -11),
        (ReplicaExited(r("trainer/0"), 1, "signal", 0, "RTMIN+3"), 1),
        (None, 1),
    ],
)
def test_the_exit_code_is_that_of_the_worker_that_failed_first(exited: ReplicaExited | None, code: int) -> None:
    assert exit_code_of(exited) == code
