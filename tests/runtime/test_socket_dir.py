"""Where the sockets of a run are when paths are long: Linux allows 107 bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from flowdist.errors import FlowdistError
from flowdist.runtime.run_folder.folder import SOCKET_PATH_MAX, socket_dir
from tests.runtime.harness import Job

LONG = "a" * 90


def test_in_the_folder_of_the_run_where_their_paths_fit() -> None:
    assert socket_dir(Path("/runs/x"), ["node0"]) == Path("/runs/x")


def test_in_the_first_folder_whose_path_is_short_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = tmp_path / LONG
    far.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(far))
    monkeypatch.setattr(tempfile, "tempdir", str(far))
    found = socket_dir(far / "run", ["node0", "node1"])
    found.rmdir()
    assert found.parent == Path("/tmp") and len(f"{found}/s4194304-1234567.sock") <= SOCKET_PATH_MAX


def test_it_is_said_when_no_path_is_short_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / LONG))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / LONG))
    with pytest.raises(FlowdistError, match="the paths are too long") as caught:
        socket_dir(tmp_path / LONG / "run", ["n" * 80])
    assert "set TMPDIR" in caught.value.help


@pytest.mark.real
def test_a_node_may_have_the_name_of_another_socket(tmp_path: Path) -> None:
    """A host that is named `control` had a node of that name, which took the socket of the controller away."""
    text = 'from flowdist import Node, Topology\nt = Topology("x", nodes=[Node("control")])\nt.role("a", "true")\n'
    (tmp_path / "topology.py").write_text(text)
    with Job(tmp_path) as job:
        job.until("control joined")
        assert job.finish() == 0, job.text
