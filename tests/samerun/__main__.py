"""`python -m tests.samerun [--runs N] [--seed N]`: runs that lose a node and get it back end equal to the bit.

Each run has four ranks, loses one of its nodes at a step that the seed decides, sometimes a worker before that, goes on
with three ranks, and has four again. It has to end with the parameters that one rank alone has under plain python,
and `flowdist report --samples` has to show that each sample was used once.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
FOUR_AGAIN = 40  # the step at which there is another node, as in trainer.py


def alone(folder: Path) -> str:
    """Return the digest of the parameters at the end of a run with one rank, which nothing disturbs."""
    subprocess.run([sys.executable, HERE / "trainer.py", "out"], cwd=folder, check=True)
    return (folder / "out").read_text()


def disturbed(folder: Path, faults: list[str]) -> tuple[str, str, list[int]]:
    """Return the digest of a run with faults, its output, and how many ranks its generations had that count."""
    for name in ("trainer.py", "topology.py"):
        shutil.copy(HERE / name, folder)
    words = [sys.executable, "-m", "flowdist"]
    options = [word for fault in faults for word in ("--fail", fault)]
    run = subprocess.run([*words, "run", *options], cwd=folder, capture_output=True, text=True, check=False)
    said = subprocess.run(
        [*words, "report", "--samples", "--json"], cwd=folder, capture_output=True, text=True, check=False
    )
    if run.returncode or said.returncode or not (folder / "out").exists():
        return "", run.stdout + run.stderr + said.stdout + said.stderr, []
    steps = json.loads(said.stdout)["worlds"]["trainer"]["steps"]
    assert steps[0]["begin"] == 0 and steps[-1]["end"] == 60
    return (folder / "out").read_text(), run.stdout, [each["ranks"] for each in steps]


def faults_of(seed: int) -> list[str]:
    """Return the faults of a seed: a node that is lost and replaced, and sometimes a worker before that."""
    draw = random.Random(seed)
    name = f"node{draw.randrange(4)}"
    worker = f"trainer/{draw.randrange(4)}@step=trainer,{draw.randrange(2, 11)}"
    node = [f"{name}@step=trainer,{draw.randrange(12, 35)}", f"node4@step=trainer,{FOUR_AGAIN}:add"]
    return [worker, *node] if draw.random() < 0.5 else node


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    options = parser.parse_args()
    same = shrunk = 0
    with tempfile.TemporaryDirectory() as name:
        expected = alone(Path(name))
    for seed in range(options.seed, options.seed + options.runs):
        began, faults = time.monotonic(), faults_of(seed)
        with tempfile.TemporaryDirectory() as name:
            digest, text, ranks = disturbed(Path(name), faults)
        same += digest == expected
        shrunk += 3 in ranks and ranks[-1] == 4
        print(f"{'ok    ' if digest == expected else 'WRONG '} {seed}: {' '.join(faults)}: ranks {ranks} "
              f"[{time.monotonic() - began:.1f} s]", flush=True)  # fmt: skip
        if digest != expected:
            print(text)
    print(f"{same} of {options.runs} runs end equal to the bit, {shrunk} of them with four ranks, three and four again")
    sys.exit(same < options.runs or shrunk < options.runs)


if __name__ == "__main__":
    main()
