"""One job over several hosts, each started by a command of its own: on real processes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from flowdist.control.history import Record
from tests.torchrun.hosts import Hosts

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
pytestmark = pytest.mark.real

ALL_REDUCE = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "MINE")
told = {name: os.environ.get(name) for name in names}
told |= {"sum": ones.item(), "token": "FLOWDIST_TOKEN" in os.environ, "folder": os.getcwd()}
open(f"{os.environ['LOCAL_RANK']}.json", "w").write(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
"""


@needs_torch
def test_three_hosts_form_one_job_whoever_comes_first(tmp_path: Path) -> None:
    script = tmp_path / "t.py"
    script.write_text(ALL_REDUCE)
    with Hosts(tmp_path, "--nnodes", "3", "--nproc-per-node", "2", "--rdzv-id", "job1") as hosts:
        token = {"FLOWDIST_TOKEN": "hush"}
        for number in (3, 2):
            hosts.another(number, str(script), env={**token, "MINE": str(number)})
        hosts.first(str(script), env=token)
        assert [job.finish() for job in hosts.jobs] == [0, 0, 0], "\n".join(job.text for job in hosts.jobs)
        assert all(job.alive() == [] for job in hosts.jobs)
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("host*/*.json"))]
    assert sorted(int(one["RANK"]) for one in told) == list(range(6))
    assert {one["WORLD_SIZE"] for one in told} == {"6"} and {one["sum"] for one in told} == {6}
    assert {one["MASTER_ADDR"] for one in told} == {"127.0.0.1"} and {one["token"] for one in told} == {False}
    assert [one["RANK"] for one in told[:2]] == ["0", "1"], "the first host has rank 0"
    assert [one["MINE"] for one in told] == [None, None, "2", "2", "3", "3"], "the environment is each host's own"
    assert {one["TORCHELASTIC_RUN_ID"] for one in told} == {"job1"}
    _, lines = hosts.jobs[2].journal()
    joined = [line.event for line in lines if isinstance(line, Record) and type(line.event).__name__ == "NodeJoined"]
    assert sorted(event.address for event in joined) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert len({event.node for event in joined}) == 3
