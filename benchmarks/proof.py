"""How many points a minute: `flowdist prove`, and the same loop by hand with torchrun, turn by turn.

    python benchmarks/proof.py [--script tests/prove/scripts/ddp.py] [--points 20] [--trials 3]

By hand a point is what a person would write: torchrun starts the script, a worker is killed once rank 0 has printed a
step between two saves, torchrun restarts it, and the end is waited for. Its shared store is switched off, which is what
makes its restarts work in torch 2.13.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--script", default="tests/prove/scripts/ddp.py")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    script = ROOT / options.script
    ours, theirs = [], []
    for trial in range(options.trials):
        theirs.append(60 / by_hand(script))
        ours.append(proved(script, options.points))
        print(f"trial {trial + 1}: {ours[-1]:.1f} points a minute, by hand {theirs[-1]:.1f}", flush=True)
    one, other = statistics.median(ours), statistics.median(theirs)
    print(f"{script.name}: {one:.1f} points a minute / {other:.1f} by hand = {one / other:.1f}")


def proved(script: Path, points: int) -> float:
    """Return how many points a minute are tried, the runs without a fault not counted."""
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(script, name)
        words = [sys.executable, "-m", "flowdist", "prove", script.name]
        listed = subprocess.run([*words, "--list"], cwd=name, capture_output=True, text=True, check=True).stdout
        names = re.findall(r"^  (\S.*)$", listed, re.M)
        only = [word for point in names[:: max(1, len(names) // points)] for word in ("--only", point)]
        done = subprocess.run([*words, "--json", *only], cwd=name, capture_output=True, text=True, check=True)
        answer = json.loads(done.stdout)
        return 60 * len(answer["tried"]) / float(answer["seconds"])


def by_hand(script: Path) -> float:
    """Return how many seconds one point takes with torchrun."""
    env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        shutil.copy(script, name)
        began, killed = time.monotonic(), False
        words = [*TORCHRUN, "--max-restarts", "1", script.name]
        with subprocess.Popen(
            words, cwd=name, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as job:
            assert job.stdout is not None
            for line in job.stdout:
                if not killed and re.match(r"step 12\b", line):
                    os.kill(worker_of(job.pid), signal.SIGKILL)
                    killed = True
        assert killed and job.returncode == 0, f"torchrun ended with {job.returncode}"
        return time.monotonic() - began


def worker_of(pid: int) -> int:
    """Return a worker of torchrun's process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])


if __name__ == "__main__":
    main()
