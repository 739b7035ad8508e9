"""Resumed runs over several hosts, on real processes: hosts come back, join anew or stay away."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeGone, NodeJoined, NodeSilent
from flowdist.record.journal import Record
from tests.runtime.harness import Job
from tests.runtime.hosts import Hosts, Torchruns

pytestmark = pytest.mark.real

# Commits its first step, and ends when the file `end` is there.
SAVE = """
import os, time
from pathlib import Path
from flowdist import worker

found = worker.latest()
print("generation", os.environ["FLOWDIST_GENERATION"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"],
      "from", found.read_text() if found else "nothing", flush=True)
path = worker.checkpoint_dir() / "one"
if os.environ["RANK"] == "0" and not found:
    path.write_text("step 1")
    print("committed", worker.commit(path, step=1), flush=True)
while not Path("end").exists():
    time.sleep(0.02)
"""
TOPOLOGY = """
from flowdist import Topology

t = Topology("hosts", nodes="1:2", checkpoint_dir="{folder}/saved")
t.role("trainer", "python train.py", replicas="{replicas}", apart=True, cooldown="0s", join_window="20s")
"""
WAITER = """
import os, time
print("generation", os.environ["FLOWDIST_GENERATION"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
while not os.path.exists("../end"):
    time.sleep(0.02)
"""


def topology(folder: Path, replicas: str = "1:2") -> str:
    (folder / "saved").mkdir()
    (folder / "train.py").write_text(SAVE)
    (folder / "topology.py").write_text(TOPOLOGY.format(folder=folder, replicas=replicas))
    return str(folder / "topology.py")


def kill(*jobs: Job) -> None:
    """Kill everything without a last message, as a power failure does."""
    for job in jobs:
        for pid in [*job.named("flowdist.runtime.controller.controller_main"), job.process.pid]:
            os.kill(pid, signal.SIGSTOP)
    for job in jobs:
        job.kill()
        job.process.wait()


def events(job: Job) -> list[object]:
    return [line.event for line in job.journal()[1] if isinstance(line, Record)]


@pytest.mark.slow
def test_after_all_hosts_were_killed_those_that_join_resume_from_the_checkpoint(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path, "2"), "--listen", hosts.endpoint, "--id", "job1")
        second = hosts.start(2, "join", hosts.endpoint, "--id", "job1")
        second.until("generation 1 rank 1 of 2 from")  # nothing, or what rank 0 has committed by then
        first.until("committed True")
        kill(first, second)
        again = hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest")
        hosts.start(2, "join", hosts.endpoint, "--id", "job1").until("rank 1 of 2 from step 1")
        again.until("rank 0 of 2 from step 1")
        (tmp_path / "end").touch()
        assert [job.finish() for job in hosts.jobs[2:]] == [0, 0], hosts.text
        assert "does not replay" not in hosts.text
        header, _ = again.journal()
    assert header.known_nodes[1:] == ("host 2 of 2",), "one journal, from the first start to the end"


@pytest.mark.slow
def test_replicas_on_a_host_that_stays_away_are_lost_at_the_end_of_its_lease(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path), "--listen", hosts.endpoint)
        second = hosts.start(2, "join", hosts.endpoint)
        second.until("generation 1 rank 1 of 2")
        first.until("committed True")
        kill(first, second)
        again = hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest")
        again.until("rank 0 of 1 from step 1")
        (tmp_path / "end").touch()
        assert again.finish() == 0, hosts.text
        (own,) = again.journal()[0].graph.cluster.nodes
        (other,) = {event.node for event in events(again) if isinstance(event, NodeJoined)} - {own.name}
        lost = [event.node for event in events(again) if isinstance(event, NodeSilent | NodeGone)]
    assert lost == [other], "after its lease, not after the ten minutes of controller_outage"


def test_a_host_that_is_still_connecting_joins_the_resumed_run(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path, "2"), "--listen", hosts.endpoint)
        second = hosts.start(2, "join", hosts.endpoint)
        second.until("generation 1 rank 1 of 2")
        first.until("committed True")
        kill(first)
        second.until("lost; connecting again")
        again = hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest")
        second.until("connected to the controller again")
        second.until("rank 1 of 2 from step 1")
        (tmp_path / "end").touch()
        assert [job.finish() for job in (second, again)] == [0, 0], hosts.text
        assert second.alive() == [] and "does not replay" not in hosts.text


@pytest.mark.slow
def test_a_host_that_read_journal_lines_which_a_crash_lost_has_to_join_again(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path), "--listen", hosts.endpoint)
        second = hosts.start(2, "join", hosts.endpoint)
        second.until("generation 1 rank 1 of 2")
        kill(first)
        journal = first.run_dir / "journal.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))
        hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest").until("rank 0 of 1")
        assert second.finish() == 1 and second.alive() == [], second.text
        assert "the journal there lost its last lines in a crash: join the job again" in second.text
        assert "does not replay" not in hosts.text


@pytest.mark.slow
def test_torchrun_hosts_join_a_resumed_run_with_their_first_command_line(tmp_path: Path) -> None:
    (tmp_path / "w.py").write_text(WAITER)
    with Torchruns(tmp_path, "--nnodes", "2", "--rdzv-id", "job1") as hosts:
        first = hosts.first(str(tmp_path / "w.py"))
        second = hosts.another(2, "--nproc-per-node", "2", str(tmp_path / "w.py"))
        second.until("generation 1 rank 2 of 3")
        kill(first, second)
        again = hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest")
        hosts.another(2, "--nproc-per-node", "2", str(tmp_path / "w.py"))
        again.until("rank 0 of 3")
        (tmp_path / "end").touch()
        assert [job.finish() for job in hosts.jobs[2:]] == [0, 0], hosts.text


def test_a_run_on_one_machine_admits_no_hosts_when_it_is_resumed(tmp_path: Path) -> None:
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", topology(tmp_path), "--nodes", "1")
        first.until("committed True")
        kill(first)
        again = hosts.start(1, "run", "--listen", hosts.endpoint, "--resume", "latest")
        assert again.finish() == 2 and "uses this machine alone" in again.text, again.text
