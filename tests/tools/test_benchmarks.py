"""The benchmarks see what they measure."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAIN = """
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):
    optimizer.step()
"""


def test_the_steps_of_an_example_count_although_it_tells_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(BENCHMARKS)
    first_step, launchers = (importlib.import_module(name) for name in ("first_step", "launchers"))
    job = launchers.Job(tmp_path, launchers.Size(1, 1, 1), first_step.STEPS + TRAIN)
    command = [sys.executable, str(tmp_path / "script.py")]
    subprocess.run(command, env={**job.env, "RANK": "0", "WORLD_SIZE": "1"}, check=True)
    (stamps,) = launchers.steps_after(job.look(), 0, 1).values()
    assert stamps["group"] < stamps["step"]


@pytest.mark.parametrize(
    "command", ["controller_events.py --nodes 10 --repeats 1", "check_large.py --runs 1", "simulate_hour.py"]
)
def test_a_benchmark_of_the_pure_parts_runs_to_its_end(command: str) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout, done.stderr
