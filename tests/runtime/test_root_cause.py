"""The root cause shows what the failed worker has left: its traceback or its last lines."""

from __future__ import annotations

from pathlib import Path

from flowdist import Topology
from flowdist.runtime.run_folder.root_cause import root_cause_text
from flowdist.testing import simulate
from flowdist.testing.kit import graph_of


def shown(folder: Path, stderr: str) -> list[str]:
    t = Topology("job", nodes=1)
    t.role("trainer", "true", restart=None)
    job = simulate(graph_of(t), "trainer/0@10s").job
    worker = folder / "trainer/0/attempt_1/0"
    worker.mkdir(parents=True)
    (worker / "stderr.log").write_text(stderr)
    return root_cause_text(job, folder).splitlines()


def test_the_last_lines_of_a_worker_without_traceback(tmp_path: Path) -> None:
    where = f"Root cause, from {tmp_path / 'trainer/0/attempt_1/0'}:"
    assert shown(tmp_path, "one\n\ntwo\n") == [where, "  one", "  two"]


def test_the_abort_of_torch_over_a_group_that_was_not_destroyed_is_explained(tmp_path: Path) -> None:
    *_, line, help = shown(tmp_path, "terminate called without an active exception\n")
    assert line == "  terminate called without an active exception"
    assert help.startswith("help: ") and help.endswith("end the script with dist.destroy_process_group()")
