"""One job over several hosts, each started by a command of its own: on real processes."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
from pathlib import Path

import pytest

from flowdist.control.protocol.events import NodeGone, NodeJoined, NodeLeft
from flowdist.record.journal import Record
from tests.runtime.harness import Deaths, Job
from tests.runtime.hosts import Hosts, Torchruns

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
pytestmark = pytest.mark.real

SOON = ("--rdzv-conf", "join_timeout=1")  # a refusal that nothing proves ends a host after that time
ALL_REDUCE = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE",
         "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "MINE")
told = {name: os.environ.get(name) for name in names}
told |= {"sum": ones.item(), "token": "FLOWDIST_TOKEN" in os.environ, "folder": os.getcwd()}
open(f"{os.environ['LOCAL_RANK']}.json", "w").write(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
"""
# Runs until the file `end` is in the folder above its own.
WAITER = """
import os, sys, time
print("generation", os.environ["FLOWDIST_GENERATION"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
while not os.path.exists("../end"):
    time.sleep(0.02)
"""


def waiter(folder: Path) -> str:
    (folder / "w.py").write_text(WAITER)
    return str(folder / "w.py")


def worker_pid(job: Job) -> int:
    """Return the process id of the latest worker that runs on the host of `job`."""
    (run_dir,) = [path for path in (job.folder / "runs").iterdir() if not path.is_symlink()]
    files = sorted(run_dir.glob("default/*/attempt_*/0/pid"), key=lambda path: path.stat().st_mtime)
    return int(files[-1].read_text())


def events(job: Job) -> list[object]:
    return [line.event for line in job.journal()[1] if isinstance(line, Record)]


@pytest.mark.slow
@needs_torch
def test_three_hosts_form_one_job_in_any_order_of_arrival(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text(ALL_REDUCE)
    with Torchruns(tmp_path, "--nnodes", "3", "--nproc-per-node", "2", "--rdzv-id", "job1") as hosts:
        token = {"FLOWDIST_TOKEN": "hush"}
        for number in (3, 2):
            hosts.another(number, str(script), env={**token, "MINE": str(number)})
        first = hosts.first(str(script), env=token)
        assert hosts.all_end() == [0, 0, 0], hosts.text
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("host*/*.json"))]
    assert sorted(int(one["RANK"]) for one in told) == list(range(6))
    assert {one["WORLD_SIZE"] for one in told} == {"6"} and {one["sum"] for one in told} == {6}
    assert {one["MASTER_ADDR"] for one in told} == {"127.0.0.1"} and {one["token"] for one in told} == {False}
    assert [one["RANK"] for one in told[:2]] == ["0", "1"], "the first host has rank 0"
    assert [one["MINE"] for one in told] == [None, None, "2", "2", "3", "3"], "the environment is each host's own"
    assert {one["TORCHELASTIC_RUN_ID"] for one in told} == {"job1"}
    joined = [event for event in events(first) if isinstance(event, NodeJoined)]
    assert sorted(event.address for event in joined) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert len({event.node for event in joined}) == 3


@pytest.mark.slow
@needs_torch
def test_hosts_may_have_different_numbers_of_workers(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text(ALL_REDUCE)
    with Torchruns(tmp_path, "--nnodes", "3") as hosts:
        first = hosts.first("--nproc-per-node", "2", str(script))
        first.until("joined")
        hosts.another(2, "--nproc-per-node", "3", str(script))
        first.until("joined")
        hosts.another(3, str(script))
        assert hosts.all_end() == [0, 0, 0], hosts.text
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("host*/*.json"))]
    assert [int(one["RANK"]) for one in told] == [0, 1, 2, 3, 4, 5], "in the order of the hosts, without a hole"
    assert [one["LOCAL_WORLD_SIZE"] for one in told] == ["2", "2", "3", "3", "3", "1"]
    assert [one["ROLE_RANK"] for one in told] == [one["RANK"] for one in told]
    assert [one["GROUP_RANK"] for one in told] == ["0", "0", "1", "1", "1", "2"]
    assert {one["WORLD_SIZE"] for one in told} == {one["ROLE_WORLD_SIZE"] for one in told} == {"6"}
    assert {one["sum"] for one in told} == {6}


@pytest.mark.slow
def test_a_world_of_hosts_with_different_numbers_of_workers_shrinks_by_whole_hosts(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:3") as hosts:
        first = hosts.first("--nproc-per-node", "1", waiter(tmp_path))
        second = hosts.another(2, "--nproc-per-node", "3", waiter(tmp_path))
        third = hosts.another(3, "--nproc-per-node", "2", waiter(tmp_path))
        first.until("rank 0 of 6")
        second.process.kill()
        first.until("rank 0 of 3")
        (tmp_path / "end").touch()
        assert (first.finish(), third.finish()) == (0, 0), hosts.text
    last = max(int(line.split()[1]) for line in third.output if line.startswith("generation "))
    assert [line for line in sorted(third.output) if line.startswith(f"generation {last} ")] == [
        f"generation {last} rank 1 of 3",
        f"generation {last} rank 2 of 3",
    ]


def test_the_second_torchrun_on_one_machine_finds_the_port_in_use_and_joins(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    with Hosts(tmp_path) as hosts:
        words = ["--nnodes", "2", "--rdzv-endpoint", hosts.endpoint, "--rdzv-backend", "c10d", str(tmp_path / "t.py")]
        for number in (1, 2):
            hosts.start(number, "torchrun", *words)
        assert hosts.all_end() == [0, 0], hosts.text
        said = hosts.text.splitlines()
    assert "rank 0 of 2" in said and "rank 1 of 2" in said


@pytest.mark.slow
def test_a_static_rendezvous_has_its_controller_and_its_ranks_where_node_rank_says(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    with Hosts(tmp_path) as hosts:
        address, port = hosts.endpoint.split(":")
        for rank in ("2", "0", "1"):
            words = ["--nnodes", "3", "--node-rank", rank, "--master-addr", address, "--master-port", port]
            hosts.start(int(rank), "torchrun", *words, str(tmp_path / "t.py"))
            if rank == "0":
                hosts.jobs[0].until("joined")  # rank 2 is there before rank 1 is started
        assert hosts.all_end() == [0, 0, 0], hosts.text
        for rank, job in zip((2, 0, 1), hosts.jobs, strict=True):
            assert f"rank {rank} of 3" in job.text


def test_a_worker_that_is_killed_on_another_host_restarts_all(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "2", "--max-restarts", "1") as hosts:
        first, second = hosts.first(waiter(tmp_path)), hosts.another(2, waiter(tmp_path))
        second.until("generation 1 rank 1 of 2")
        os.kill(worker_pid(second), signal.SIGKILL)
        first.until("generation 2 rank 0 of 2")
        second.until("generation 2 rank 1 of 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text


@pytest.mark.slow
def test_a_failure_on_another_host_is_shown_there_and_where_the_controller_is(tmp_path: Path) -> None:
    script = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad shape')\ntime.sleep(60)\n"
    (tmp_path / "t.py").write_text(script)
    with Torchruns(tmp_path, "--nnodes", "2") as hosts:
        first, second = hosts.first(str(tmp_path / "t.py")), hosts.another(2, str(tmp_path / "t.py"))
        assert hosts.all_end() == [1, 1], hosts.text
        for job in (first, second):
            assert "ValueError: bad shape" in job.text and "Root cause, from" in job.text
        node = next(e.node for e in events(first) if isinstance(e, NodeJoined) and e.address == "127.0.0.2")
        assert f"Root cause, from {node}, default/1/attempt_1/0:" in first.text
    assert not list(first.folder.glob("runs/latest/default/1/*/0/stdout.log")), "logs stay where the worker ran"
    assert list(second.folder.glob("runs/*/default/1/attempt_1/0/stdout.log"))


@pytest.mark.slow
def test_a_host_whose_torchrun_is_killed_leaves_nothing_and_the_others_continue(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:2") as hosts:
        first, second = hosts.first(waiter(tmp_path)), hosts.another(2, waiter(tmp_path))
        second.until("rank 1 of 2")
        with Deaths(second.alive()) as deaths:
            second.process.kill()
            assert deaths.survivors() == []
        first.until("generation 2 rank 0 of 1")
        (tmp_path / "end").touch()
        assert first.finish() == 0, first.text
        (gone,) = [event for event in events(first) if isinstance(event, NodeGone)]
        assert gone.cause == "its flowdist was killed", "proven by its guardian, not by its silence"


@pytest.mark.slow
def test_sigterm_of_a_host_is_a_leave(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:2") as hosts:
        first, second = hosts.first(waiter(tmp_path)), hosts.another(2, waiter(tmp_path))
        second.until("rank 1 of 2")
        second.process.send_signal(signal.SIGTERM)
        assert second.finish() == 130 and second.alive() == [], second.text
        first.until("generation 2 rank 0 of 1")
        (tmp_path / "end").touch()
        assert first.finish() == 0, first.text
        ends = [type(event) for event in events(first) if isinstance(event, NodeGone | NodeLeft)]
        assert ends[0] == NodeLeft, "what its guardian proves later changes nothing"


@pytest.mark.slow
def test_an_agent_that_dies_on_another_host_is_started_again(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "2") as hosts:
        first, second = hosts.first(waiter(tmp_path)), hosts.another(2, waiter(tmp_path))
        first.until("generation 1 rank 0 of 2")
        second.until("generation 1 rank 1 of 2")
        guardian = second.named("flowdist.runtime.agent.guardian")[0]
        os.kill(guardian, signal.SIGKILL)
        second.until("agent started again")
        second.until("generation 2 rank 1 of 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text
        joined = [event for event in events(first) if isinstance(event, NodeJoined) and event.address == "127.0.0.2"]
        assert [event.incarnation for event in joined] == [1, 1001] and len({event.node for event in joined}) == 1


@pytest.mark.slow
def test_the_host_with_the_controller_is_killed_and_the_others_end_with_the_reason(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:3") as hosts:
        first = hosts.first(waiter(tmp_path))
        others = [hosts.another(number, waiter(tmp_path)) for number in (2, 3)]
        for job in others:
            job.until("of 3")
        first.process.kill()
        assert [job.finish() for job in others] == [1, 1], hosts.text
        for job in others:
            place = f"the controller at {hosts.endpoint} is gone"
            assert f"{place}: flowdist ended there before the job was over" in job.text and job.alive() == []


@pytest.mark.slow
def test_a_controller_that_is_killed_alone_is_noticed_by_no_worker_on_any_host(tmp_path: Path) -> None:
    topology = tmp_path / "job/topology.py"
    topology.parent.mkdir()
    topology.write_text(
        "from flowdist import Topology\n"
        "t = Topology('hosts', nodes='1:2', lease='1m')  # who comes late is nobody's loss here\n"
        f"t.role('trainer', ['python', {waiter(tmp_path)!r}], replicas=2, apart=True, join_window='60s')\n"
    )
    with Hosts(tmp_path) as hosts:
        first = hosts.start(1, "run", str(topology), "--listen", hosts.endpoint)
        first.until("joined")
        second = hosts.start(2, "join", hosts.endpoint)
        first.until("generation 1 rank 0 of 2")
        second.until("generation 1 rank 1 of 2")
        os.kill(first.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        second.until("connected to the controller again")
        first.until("the controller is back, as epoch 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0] and "generation 2" not in hosts.text, hosts.text


@pytest.mark.slow
def test_only_the_host_of_a_lost_controller_keeps_its_workers_beyond_a_lease(
    tmp_path: Path,
) -> None:
    with Torchruns(tmp_path, "--nnodes", "2") as hosts:
        first, second = hosts.first(waiter(tmp_path)), hosts.another(2, waiter(tmp_path))
        first.until("generation 1 rank 0 of 2")
        second.until("generation 1 rank 1 of 2")
        workers = [worker_pid(first), worker_pid(second)]
        first.process.send_signal(signal.SIGSTOP)  # it starts no other
        os.kill(first.named("flowdist.runtime.controller.controller_main")[0], signal.SIGKILL)
        with Deaths(workers[1:]) as deaths:
            assert deaths.survivors() == [], "over TCP a refusal may be a firewall's: the lease decides"
        with Deaths(workers[:1]) as deaths:
            assert deaths.survivors(0.2) == workers[:1]
        first.process.send_signal(signal.SIGCONT)
        second.until("connected to the controller again")
        second.until("generation 2 rank 1 of 2")
        (tmp_path / "end").touch()
        assert hosts.all_end() == [0, 0], hosts.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["--rdzv-id", "job2"], "hush", "runs job 'job1', and this host asked for job 'job2'"),
        (["--rdzv-id", "job1", *SOON], "other", "the host that runs the controller has another token"),
        (["--rdzv-id", "job1"], "", "(it is not set here)"),
        (["--rdzv-id", "job1", "--role", "b"], "hush", "--role is b here, and default on the host"),
    ],
)
def test_a_host_that_does_not_belong_to_the_job_is_refused(
    tmp_path: Path, words: list[str], env: str, message: str
) -> None:
    with Torchruns(tmp_path, "--nnodes", "1:2") as hosts:
        first = hosts.first("--rdzv-id", "job1", waiter(tmp_path), env={"FLOWDIST_TOKEN": "hush"})
        first.until("joined")
        second = hosts.another(2, *words, waiter(tmp_path), env={"FLOWDIST_TOKEN": env})
        assert second.finish() == 2 and message in second.text and "Traceback" not in second.text, second.text
        (tmp_path / "end").touch()
        assert first.finish() == 0 and "rank 0 of 1" in first.text, first.text


def test_no_controller_answers_at_the_endpoint(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "2", "--rdzv-conf", "is_host=0,join_timeout=1") as hosts:
        job = hosts.start(2, "torchrun", *hosts.options, "--rdzv-endpoint", hosts.endpoint, waiter(tmp_path))
        assert job.finish() == 1
        assert f"no controller has answered at {hosts.endpoint} for 1 s: connection refused" in job.text
        assert "start the same command on 127.0.0.1" in job.text and job.alive() == []


def test_another_program_uses_the_port(tmp_path: Path) -> None:
    with Torchruns(tmp_path, "--nnodes", "2") as hosts, socket.create_server(("127.0.0.1", 0)) as other:
        hosts.endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        job = hosts.first(waiter(tmp_path))
        assert job.finish() == 2 and f"{hosts.endpoint} cannot be bound: address already in use" in job.text
        assert "use another" in job.text
        job = hosts.another(2, waiter(tmp_path))
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"\0\0\0\4SSH-")
            assert job.finish() == 2 and f"what listens at {hosts.endpoint} is no flowdist" in job.text
