"""A worker that has torch imported is killed: how long until its successor runs user code with torch imported.

    python benchmarks/warm_restart.py [--trials 5] [--no-torchrun]

The same script under flowdist with warm workers, with `warm=False`, and under torchrun, turn by turn in one
run. Each worker writes down when it has imported torch; rank 1 writes down when it kills itself, once. What is measured
ends when the last worker of the next generation is there. Medians and ratios are printed.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import os, signal, time
import torch
torch.ones(1).add_(1)
again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
os.write(1, f"{'AGAIN' if again else 'FIRST'} {time.time():.6f}\\n".encode())
if not again:
    peers = int(os.environ["WORLD_SIZE"])
    open(f"up.{os.environ['RANK']}", "w").close()
    if os.environ["RANK"] != "1":
        time.sleep(60)
    while not all(os.path.exists(f"up.{rank}") for rank in range(peers)):
        time.sleep(0.01)
    os.write(1, f"DIES {time.time():.6f}\\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
"""
TIMEOUT_S = 120


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--procs", type=int, default=4)
    parser.add_argument("--no-torchrun", action="store_true")
    options = parser.parse_args()
    flowdist = [sys.executable, "-m", "flowdist", "run", "script.py", "--replicas", f"1x{options.procs}"]
    flowdist += ["--max-restarts", "2"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.procs)]
    contenders = {
        "flowdist, warm": flowdist,
        "flowdist, cold": [*flowdist, "--set", "trainer.warm=false"],
        "torchrun, shared store off": [*torchrun, "--max-restarts", "2", "script.py"],
    }
    if options.no_torchrun:
        del contenders["torchrun, shared store off"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for trial in range(options.trials):
        for name, command in contenders.items():
            first, again = run(command, options.procs)
            found[name].append((first, again))
            print(f"{name}: trial {trial + 1}: first start {first:.2f} s, restart {again:.3f} s", flush=True)
    base_first, base_again = medians(found["flowdist, warm"])
    for name, times in found.items():
        first, again = medians(times)
        print(f"{name}: start to user code {first:.2f} s, death to user code {again:.3f} s (medians)")
        if name != "flowdist, warm":
            print(f"  warm is {base_first / first:.2f} of its first start and {base_again / again:.3f} of its restart")


def run(command: list[str], procs: int) -> tuple[float, float]:
    """Seconds from the start of the command, and from the death, until the last of the workers is in user code."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(SCRIPT)
        env = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        start = time.time()
        done = subprocess.run(
            command, check=False, cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    times = {
        word: [float(text) for text in re.findall(rf"{word} ([\d.]+)", done.stdout)]
        for word in ("FIRST", "DIES", "AGAIN")
    }
    if done.returncode or len(times["FIRST"]) != procs or len(times["AGAIN"]) != procs or len(times["DIES"]) != 1:
        raise SystemExit(f"{' '.join(command)} did not recover:\n{done.stdout}\n{done.stderr}")
    return max(times["FIRST"]) - start, max(times["AGAIN"]) - times["DIES"][0]


def medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(first for first, _ in times), statistics.median(again for _, again in times)


if __name__ == "__main__":
    main()
