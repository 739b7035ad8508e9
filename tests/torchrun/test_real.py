"""The same command lines with torchrun and with flowdist, on real processes."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.harness import Job

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
pytestmark = pytest.mark.real

ALL_REDUCE = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
told = {"env": dict(os.environ), "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(), "sum": ones.item()}
open(f"{sys.argv[1]}-{os.environ['RANK']}.json", "w").write(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
"""
# Variables with a path or a port of the run, and those that flowdist adds: see docs/torchrun.md and
# docs/reference/environment.md.
OTHERWISE = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
ADDED = {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "PYTHONUNBUFFERED"}
TAKEN_AWAY = {"TORCHELASTIC_SIGNALS_TO_HANDLE"}


@pytest.mark.slow
@needs_torch
def test_a_worker_sees_what_it_sees_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(ALL_REDUCE)
    arguments = ["--standalone", "--nproc_per_node=2", "--max-restarts", "3", "--role", "chief", "t.py"]
    after = ["$local_rank", "${oc.env:HOME}", "$$", "two words", "-h"]
    told = []
    for name, command in (("torchrun", "torch.distributed.run"), ("ours", "flowdist torchrun")):
        run = [sys.executable, "-m", *command.split(), *arguments, name, *after]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        told.append([json.loads((tmp_path / f"{name}-{rank}.json").read_text()) for rank in range(2)])
    for theirs, ours in zip(*told, strict=True):
        assert theirs.pop("argv")[2:] == ours.pop("argv")[2:]
        environments = theirs.pop("env"), ours.pop("env")
        assert theirs == ours and theirs["sum"] == 2
        compare(*environments)


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert theirs["TORCHELASTIC_MAX_RESTARTS"] == "3" and theirs["ROLE_NAME"] == "chief"
    assert set(theirs) >= OTHERWISE and all(ours[name] for name in OTHERWISE)
    assert set(theirs) - set(ours) <= TAKEN_AWAY
    assert {name for name in set(ours) - set(theirs) if not name.startswith("FLOWDIST_")} <= ADDED
    different = {name for name in set(ours) & set(theirs) if ours[name] != theirs[name]}
    assert different <= OTHERWISE


def test_a_failing_script_recovers_and_its_logs_are_where_torchrun_has_them(tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(
        "import os, sys\nrestart = os.environ['TORCHELASTIC_RESTART_COUNT']\nrank = os.environ['RANK']\n"
        "print('attempt', restart, 'of rank', rank)\nsys.exit(7 if (rank, restart) == ('1', '0') else 0)\n"
    )
    words = "--max-restarts=1 --nproc-per-node=2 --log-dir=logs --rdzv-id=job7 --rdzv-backend=c10d -r 3 -t 1:1 flaky.py"
    with Job(tmp_path, *words.split(), verb="torchrun") as job:
        assert job.finish() == 0 and job.alive() == [], job.text
        printed = [line for line in job.output if line.startswith("[")]
        assert printed == ["[default1]:attempt 0 of rank 1", "[default1]:attempt 1 of rank 1"]
        assert job.text.count("these change nothing here: --rdzv-backend c10d") == 1
    (run_dir,) = (tmp_path / "logs").iterdir()
    assert run_dir.name.startswith("job7_")
    for attempt in range(2):
        assert (run_dir / f"attempt_{attempt}/1/stdout.log").read_text() == f"attempt {attempt} of rank 1\n"


def test_a_failing_script_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("raise SystemExit(5)")
    with Job(tmp_path, "--nnodes", "2", "--role", "Trainer_X", "bad.py", verb="torchrun") as job:
        assert job.finish() == 1 and "role trainer_x has no restart policy" in job.text
    with Job(tmp_path, "nope.py", verb="torchrun") as job:
        assert job.finish() == 2 and "script 'nope.py' is not found" in job.text


@pytest.mark.slow
def test_modules_programs_and_variables(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text("import os, sys; print(sys.argv[1:], os.environ['LOCAL_WORLD_SIZE'])")
    with Job(tmp_path, "-m", "package.train", "--x", env={"PET_NPROC_PER_NODE": "2"}, verb="torchrun") as job:
        assert job.finish() == 0 and job.text.count("['--x'] 2") == 2
    words = ["--no-python", "sh", "-c", "echo $RANK of $WORLD_SIZE: ${HOME}"]
    with Job(tmp_path, "--nnodes=2", *words, env={"HOME": "/x"}, verb="torchrun") as job:
        assert job.finish() == 0, job.text
        assert sorted(line for line in job.output if "of 2" in line and "flowdist" not in line) == [
            "0 of 2: /x",
            "1 of 2: /x",
        ]


BY_PORT = """
import os, signal, sys, torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method=sys.argv[1], rank=rank, world_size=size)
ones = torch.ones(1)
dist.all_reduce(ones)
if (rank, os.environ["TORCHELASTIC_RESTART_COUNT"]) == (1, "0"):
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print("sum", ones.item(), "by port", os.environ["MASTER_PORT"], flush=True)
dist.destroy_process_group()
"""


@pytest.mark.slow
@needs_torch
def test_a_script_that_names_the_store_by_its_port_finds_it_after_a_kill_too(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(BY_PORT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = ["--nproc-per-node=2", "--max-restarts=2", "--master-port", port, "t.py", f"tcp://localhost:{port}"]
    with Job(tmp_path, *words, verb="torchrun") as job:
        assert job.finish() == 0 and job.alive() == [], job.text
        assert job.text.count(f"sum 2.0 by port {port}") == 2
    with socket.create_server(("127.0.0.1", int(port))), Job(tmp_path, *words, verb="torchrun") as job:
        assert job.finish() != 0 and f"127.0.0.1:{port} cannot be bound" in job.text


@pytest.mark.slow
@needs_torch
def test_a_script_whose_rank_0_serves_a_store_of_its_own_does_so_after_a_kill_too(tmp_path: Path) -> None:
    if tuple(map(int, version("torch").split(".")[:2])) < (2, 15):
        pytest.skip("before torch 2.15, every rank is a client of a store that nobody serves: `make newest` runs this")
    (tmp_path / "t.py").write_text(BY_PORT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    words = ["--nproc-per-node=2", "--max-restarts=2", "t.py", f"tcp://127.0.0.1:{port}"]
    with Job(tmp_path, *words, verb="torchrun") as job:
        assert job.finish() == 0 and job.alive() == [], job.text
        assert job.text.count("sum 2.0 by port") == 2 and f"by port {port}" not in job.text
