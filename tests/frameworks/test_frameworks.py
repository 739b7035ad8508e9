"""Each example of examples/frameworks under `flowdist torchrun`: a run with a kill ends with the values of one without.

The scripts run as they are. A few lines before them register torch's own hook for optimizer steps, which kills the
worker of one rank once, always after the same step: no test depends on how fast the machine is.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.frameworks.examples import EXAMPLES, WAIT, WAIT_TOGETHER, with_lines
from tests.runtime.harness import Job

KILL = """
import os, signal
from itertools import count
from torch.optim.optimizer import register_optimizer_step_post_hook
def kill(*_, steps=count(1)):
    if next(steps) == {step} and os.environ["RANK"] == "{rank}" and not os.path.exists("killed"):
        open("killed", "x")
        os.kill(os.getpid(), signal.SIGKILL)
register_optimizer_step_post_hook(kill)
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def environment(tmp_path: Path) -> dict[str, str]:
    """Return variables with which flowdist learns its preload, as it does by default, in a cache of the test's own."""
    return {**OFFLINE, "XDG_CACHE_HOME": str(tmp_path / "cache")}


class Case(NamedTuple):
    """One example, the packages that it needs, and the step after which the worker of a rank is killed."""

    example: str
    packages: tuple[str, ...]
    step: int
    rank: int = 1


# Two workers have 8 batches an epoch. Step 13 is in the middle of an epoch, after at least one checkpoint. Step 11 of
# FSDP2 is the one after step 10, whose checkpoint may be half written then.
CASES = [
    Case("accelerate_loop", ("accelerate",), 13),
    Case("transformers_trainer", ("accelerate", "transformers"), 13),
    Case("lightning_fit", ("lightning",), 13),
    Case("fsdp2_checkpoint", (), 11),
    Case("stateful_dataloader", ("torchdata",), 13),
    Case("rpc_parameter_server", (), 13, rank=0),
    Case("elastic_adamw", (), 13),
]
each_turn = pytest.mark.parametrize("turn", range(int(os.environ.get("TIMES", "1"))))  # make frameworks TIMES=10
pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(600)]  # a busy machine imports for minutes


def need(*packages: str) -> None:
    """Skip the test where a package is missing."""
    missing = [package for package in ("torch", *packages) if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: `make frameworks` installs what these tests need")


def script(folder: Path, example: str, step: int = 0, rank: int = 1) -> Path:
    """Write the example into the folder, with lines that kill a worker after a step if there is a step."""
    return with_lines(folder, example, KILL.format(step=step, rank=rank) if step else "")


def final(job: Job) -> list[str]:
    return [line for line in job.output if line.startswith("final ")]


@each_turn
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.example)
def test_a_run_with_a_kill_ends_with_the_values_of_one_without(case: Case, turn: int, tmp_path: Path) -> None:
    need(*case.packages)
    ends = []
    for step in (0, case.step):
        folder = tmp_path / f"killed_after_{step}"
        folder.mkdir()
        path = script(folder, case.example, step, case.rank)
        words = ("--nproc-per-node", "2", "--max-restarts", "1", path.name)
        with Job(folder, *words, verb="torchrun", env=environment(tmp_path)) as job:
            assert job.finish() == 0 and job.alive() == [], job.text
            assert (folder / "killed").exists() == bool(step), job.text
            ends.append(final(job))
    assert len(ends[0]) == 1 and ends[0] == ends[1]


@pytest.mark.parametrize(
    ("example", "packages"),
    [("samples_trainer", ("accelerate", "transformers")), ("samples_lightning", ("lightning",))],
)
def test_two_ranks_that_are_killed_and_one_that_goes_on_use_the_samples_of_one(
    example: str, packages: tuple[str, ...], tmp_path: Path
) -> None:
    """Another number of ranks has other last digits of the sums. Other samples would change the first digits."""
    need(*packages)
    ends = []
    for name, jobs in (("alone", [(1, 0)]), ("killed", [(2, 13), (1, 0)])):
        folder = tmp_path / name
        folder.mkdir()
        for ranks, step in jobs:
            words = ("--nproc-per-node", str(ranks), script(folder, example, step).name)
            with Job(folder, *words, verb="torchrun", env=environment(tmp_path)) as job:
                assert (job.finish() == 0) == (step == 0) and job.alive() == [], job.text
                ends += [float(line.split()[1]) for line in final(job)]
    assert len(ends) == 2 and ends[1] == pytest.approx(ends[0], rel=1e-6)


RANK, NODE = "trainer/1@step=trainer,12+1s", "node1@step=trainer,12+1s"  # the last snapshot is of step 10


def in_memory(folder: Path, example: str, *words: str) -> Job:
    """Start an example whose state is in memory. If there is a fault, generation 1 waits for it in step 13."""
    folder.mkdir()
    wait = WAIT_TOGETHER if example == "memory_in_place" else WAIT  # who sleeps does not leave its group
    path = with_lines(folder, example, wait if "--fail" in words else "")
    (folder / "topology.py").write_text((EXAMPLES / "memory_topology.py").read_text())
    return Job(folder, "topology.py", "-p", f"script={path.name}", *words, env=environment(folder.parent))


def said(job: Job, words: str) -> list[str]:
    """Return what follows the words in the lines of the workers."""
    return [line.partition(words)[2] for line in job.output if words in line and line.startswith("[trainer/")]


@each_turn
@pytest.mark.parametrize(
    ("example", "packages"),
    [
        ("memory_hsdp", ()),
        ("memory_tensor_parallel", ()),
        ("memory_trainer", ("accelerate", "transformers")),
        ("memory_lightning", ("lightning",)),
        ("memory_in_place", ()),
    ],
)
def test_a_run_that_goes_on_from_memory_ends_equal_to_the_bit(
    example: str, packages: tuple[str, ...], turn: int, tmp_path: Path
) -> None:
    need(*packages)
    ends = []
    for name, words in (("none", ()), ("rank", ("--fail", RANK)), ("node", ("--fail", NODE))):
        with in_memory(tmp_path / name, example, *words) as job:
            assert job.finish() == 0 and job.alive() == [], job.text
        first, *later = [int(text.split()[0]) for text in said(job, "begins at step ")]
        assert first == 0 and (later in ([5], [10]) if words else later == []), job.text
        assert not any(line.startswith("flowdist") and "error: " in line for line in job.output), job.text
        assert not list((tmp_path / name).rglob("checkpoint*/**/*")), "nothing is on the disk"
        ends.append(said(job, "] final "))
        if example == "memory_in_place" and words:
            processes = said(job, "] process ")
            assert "trainer: 3 of 3 leave generation 1 in place" in job.text
            assert len({text.split()[0] for text in processes}) == 5 and len(processes) == 8, job.text
    assert len(ends[0]) == 1 and ends[0] == ends[1] == ends[2]


def test_two_ranks_go_on_from_what_four_have_saved_by_hsdp(tmp_path: Path) -> None:
    """Another number of ranks has other last digits of the sums."""
    need()
    ends = []
    for name, words in (("four", ()), ("two", ("-p", "ranks=2:4", "-p", "nodes=2", "--fail", NODE))):
        with in_memory(tmp_path / name, "memory_hsdp", *words) as job:
            assert job.finish() == 0 and job.alive() == [], job.text
        first, *later = said(job, "begins at step ")
        assert first == "0 with 4 ranks", job.text
        assert later in (["5 with 2 ranks"], ["10 with 2 ranks"]) if words else later == [], job.text
        ends += [float(text.split()[0]) for text in said(job, "] final ")]
    assert len(ends) == 2 and ends[1] == pytest.approx(ends[0], rel=1e-6)


def test_lightning_repeats_batches_if_it_saves_within_an_epoch(tmp_path: Path) -> None:
    """It begins the epoch's data anew with a plain DataLoader, and says so: see docs/frameworks.md."""
    need("lightning")
    ends = []
    for step in (0, 13):
        folder = tmp_path / f"killed_after_{step}"
        folder.mkdir()
        path = script(folder, "lightning_fit", step)
        words = ("--nproc-per-node", "2", "--max-restarts", "1", path.name, "--save-steps", "5")
        with Job(folder, *words, verb="torchrun", env=environment(tmp_path)) as job:
            assert job.finish() == 0 and job.alive() == [], job.text
            assert ("your dataloader is not resumable" in job.text) == bool(step), job.text
            ends.append(final(job))
    assert ends[0] != ends[1]


@each_turn
def test_a_replica_group_of_torchft_gets_its_state_from_the_other(turn: int, tmp_path: Path) -> None:
    need("torchft")
    ends = []
    for step in (0, 13):
        folder = tmp_path / f"killed_after_{step}"
        folder.mkdir()
        with lighthouse() as address, group(folder, 0, address) as first, group(folder, 1, address, step) as second:
            assert (first.finish(), second.finish()) == (0, 0), first.text + second.text
            assert first.alive() == [] and second.alive() == []
            assert (folder / "group1/killed").exists() == bool(step), second.text
            assert final(first) == final(second), first.text + second.text
            ends.append(final(first))
    assert len(ends[0]) == 1 and ends[0] == ends[1]


def group(folder: Path, number: int, address: str, step: int = 0) -> Job:
    """Start one replica group, which is a job of one worker."""
    (folder / f"group{number}").mkdir()
    path = script(folder / f"group{number}", "torchft_ddp", step, rank=0)
    env = {**environment(folder), "REPLICA_GROUP_ID": str(number), "TORCHFT_LIGHTHOUSE": address}
    return Job(path.parent, "--max-restarts", "1", path.name, verb="torchrun", env=env)


@contextmanager
def lighthouse() -> Iterator[str]:
    """Run torchft's lighthouse in a process of its own, as its users do; its address ends with the block."""
    code = "from torchft.coordination import LighthouseServer as Server; import sys\n"
    code += "server = Server(bind='127.0.0.1:0', min_replicas=2, join_timeout_ms=10_000)\n"
    code += "print(server.address(), flush=True); sys.stdin.read(); server.shutdown()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
