"""A worker whose process group gives up a collective is recognised by what torch writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowdist.runtime.worker_env.worker_errors import collective_timeout

NCCL = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE) ran for 10044 ms"
GLOO = "[unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"


def test_nccl_writes_it_before_its_stack_traces(tmp_path: Path) -> None:
    frames = "".join(f"frame #{n}: c10::Error::Error + 0x{n:x} ({'x' * 80})\n" for n in range(200))
    (tmp_path / "stderr.log").write_text(f"step 7\n  what():  {NCCL}\n{frames}")
    assert collective_timeout(tmp_path, aborted=True) == NCCL.removeprefix("[Rank 0] ")
    assert collective_timeout(tmp_path) == ""  # another signal, or an exit code, has another cause


@pytest.mark.parametrize("text", [GLOO, "Rank 1 failed to pass monitoredBarrier in 5000 ms", NCCL])
def test_an_error_of_python_tells_it_in_the_error_file_or_in_the_last_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "stderr.log").write_text(f"Traceback\nRuntimeError: {text}\n")
    found = collective_timeout(tmp_path)
    assert found and text.endswith(found)
    (tmp_path / "stderr.log").write_text(f"RuntimeError: {text}\nValueError: later\n")
    assert collective_timeout(tmp_path) == ""
    (tmp_path / "error.json").write_text(json.dumps({"message": f"RuntimeError: {text}\nmore"}))
    assert collective_timeout(tmp_path) == found


def test_secrets_are_hidden_in_it(tmp_path: Path) -> None:
    (tmp_path / "error.json").write_text(json.dumps({"message": f"{GLOO} from hunter2"}))
    assert collective_timeout(tmp_path, lambda text: text.replace("hunter2", "***")).endswith("from ***")


def test_any_other_error_is_none(tmp_path: Path) -> None:
    assert collective_timeout(tmp_path) == collective_timeout(tmp_path, aborted=True) == ""
    (tmp_path / "error.json").write_text(json.dumps({"message": "TimeoutError: timed out"}))
    assert collective_timeout(tmp_path) == ""
