"""`python -m tests.samerun [--memory] [--runs N] [--seed N]`: runs that lose nodes and workers end equal to the bit.

Each run has four ranks, loses one of its nodes at a step that the seed decides, sometimes a worker before that, goes on
with three ranks, and has four again. It has to end with the parameters that one rank alone has under plain python, and
`flowdist report --samples` has to show that each sample was used once.

With `--memory` four ranks train with FSDP2 and have their state in the memory of nodes alone. A worker or a node is
lost right after a step. The run has to go on from the last step that was whole, and end as one that nothing disturbs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
FOUR_AGAIN = 40  # the step at which there is another node, as in trainer.py
WORDS = [sys.executable, "-m", "flowdist"]


class End(NamedTuple):
    """What came of a run: a digest of its parameters (empty: it failed), its output, and what it went on with."""

    digest: str
    text: str
    went_on: list[int]

    @property
    def is_complete(self) -> bool:
        """Return whether the run has seen what it is for: 4, 3 and 4 ranks, or a generation that began at a step."""
        return (3 in self.went_on and self.went_on[-1] == 4) or (len(self.went_on) == 1 and self.went_on[0] > 0)


def alone(folder: Path) -> str:
    """Return the digest of a run with one rank, which nothing disturbs."""
    subprocess.run([sys.executable, HERE / "trainer.py", "out"], cwd=folder, check=True)
    return (folder / "out").read_text()


def disturbed(folder: Path, faults: list[str]) -> End:
    """Return what comes of a run with faults, and how many ranks its generations had that count."""
    run = _run(folder, "trainer.py", "topology.py", faults)
    report = [*WORDS, "report", "--samples", "--json"]
    said = subprocess.run(report, cwd=folder, capture_output=True, text=True, check=False)
    if run.returncode or said.returncode or not (folder / "out").exists():
        return End("", run.stdout + run.stderr + said.stdout + said.stderr, [])
    steps = json.loads(said.stdout)["worlds"]["trainer"]["steps"]
    assert steps[0]["begin"] == 0 and steps[-1]["end"] == 60
    return End((folder / "out").read_text(), run.stdout, [each["ranks"] for each in steps])


def in_memory(folder: Path, faults: list[str]) -> End:
    """Return what comes of a run that has its state in memory, and at which step the second generation began."""
    run = _run(folder, "sharded.py", "sharded_topology.py", faults)
    if run.returncode or not (folder / "out").exists():
        return End("", run.stdout + run.stderr, [])
    begun = [int(step) for step in re.findall(r"begins at (\d+)", run.stdout)]
    return End((folder / "out").read_text(), run.stdout, sorted(set(begun[4:])))


def _run(folder: Path, script: str, topology: str, faults: list[str]) -> subprocess.CompletedProcess[str]:
    for name in (script, topology):
        shutil.copy(HERE / name, folder)
    options = [word for fault in faults for word in ("--fail", fault)]
    wait = {"WAIT": faults[0].rpartition(",")[2]} if faults else {}
    command = [*WORDS, "run", topology, *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **wait})


def faults_of(seed: int) -> list[str]:
    """Return the faults of a seed: a node that is lost and replaced, and sometimes a worker before that."""
    draw = random.Random(seed)
    name = f"node{draw.randrange(4)}"
    worker = f"trainer/{draw.randrange(4)}@step=trainer,{draw.randrange(2, 11)}"
    node = [f"{name}@step=trainer,{draw.randrange(12, 35)}", f"node4@step=trainer,{FOUR_AGAIN}:add"]
    return [worker, *node] if draw.random() < 0.5 else node


def fault_in_memory(seed: int) -> list[str]:
    """Return the fault of a seed: a worker or a node is lost right after a step."""
    draw = random.Random(seed)
    target = draw.choice([f"trainer/{draw.randrange(4)}", f"node{draw.randrange(3)}"])
    return [f"{target}@step=trainer,{draw.randrange(2, 29)}"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", action="store_true", help="FSDP2, with its state in the memory of nodes")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    options = parser.parse_args()
    same = complete = 0
    with tempfile.TemporaryDirectory() as name:
        expected = in_memory(Path(name), []).digest if options.memory else alone(Path(name))
    for seed in range(options.seed, options.seed + options.runs):
        began, faults = time.monotonic(), fault_in_memory(seed) if options.memory else faults_of(seed)
        with tempfile.TemporaryDirectory() as name:
            end = (in_memory if options.memory else disturbed)(Path(name), faults)
        same += end.digest == expected
        complete += end.is_complete
        print(f"{'ok    ' if end.digest == expected else 'WRONG '} {seed}: {' '.join(faults)}: went on with "
              f"{end.went_on} [{time.monotonic() - began:.1f} s]", flush=True)  # fmt: skip
        if end.digest != expected:
            print(end.text)
    what = "went on from memory" if options.memory else "had four ranks, three and four again"
    print(f"{same} of {options.runs} runs end equal to the bit; {complete} {what}")
    sys.exit(same < options.runs or complete < options.runs)


if __name__ == "__main__":
    main()
