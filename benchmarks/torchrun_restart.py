"""The same script under flowdist and under torchrun, turn by turn: four gloo workers, rank 1 dies once.

    python benchmarks/torchrun_restart.py [--trials 20] [--peer-trials 5]

Printed: how many runs recovered, the whole-process times, how long from the death to the first all_reduce of the new
generation, and whether any process was left. torchrun runs once with its defaults and once with its shared store
switched off, which is what makes its restarts work in torch 2.13.
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
import uuid
from pathlib import Path

SCRIPT = """
import datetime, os, time, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    ones = torch.ones(1)
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    for step in range(10):
        dist.all_reduce(ones)
        ones.fill_(1)
        if again and step == 0:
            os.write(1, f"AGAIN {time.time():.6f}\\n".encode())
        if dist.get_rank() == 1 and not again and step == 5:
            os.write(1, f"DIES {time.time():.6f}\\n".encode())
            os._exit(3)
    dist.destroy_process_group()

main()
"""
MARK = "FLOWDIST_BENCH_MARK"
TIMEOUT_S = 120
COUNT_TIMEOUT_S = 45  # whoever has not come back by then will not
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
TORCHRUN += ["--max-restarts", "2", "script.py"]
FLOWDIST = [sys.executable, "-m", "flowdist", "run", "script.py", "--replicas", "1x4", "--max-restarts", "2"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--peer-trials", type=int, default=3)
    options = parser.parse_args()
    contenders = {
        "flowdist": (FLOWDIST, {}, options.trials),
        "torchrun, shared store off": (TORCHRUN, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, options.peer_trials),
        "torchrun, defaults": (TORCHRUN, {}, options.peer_trials),
    }
    results: dict[str, list[tuple[bool, float, float | None, int]]] = {name: [] for name in contenders}
    for trial in range(max(options.trials, options.peer_trials)):
        for name, (command, env, trials) in contenders.items():
            if trial < trials:
                results[name].append(run(command, env))
                print(f"{name}: trial {trial + 1} {'recovered' if results[name][-1][0] else 'FAILED'}", flush=True)
    for name, runs in results.items():
        report(name, runs)
    ours, theirs = (median(results[name]) for name in ("flowdist", "torchrun, shared store off"))
    if ours and theirs:
        print(f"death to first all_reduce: {ours:.2f} s / {theirs:.2f} s = {ours / theirs:.2f} of torchrun's time")


def count(trials: int, peer_trials: int) -> dict[str, tuple[int, int]]:
    """How many restarts of so many come to a good end, each with all defaults."""
    contenders = {"flowdist": (FLOWDIST, trials), "torchrun": (TORCHRUN, peer_trials)}
    good = dict.fromkeys(contenders, 0)
    for trial in range(max(trials, peer_trials)):
        for name, (command, of) in contenders.items():
            if trial >= of:
                continue
            recovered, seconds, *_ = run(command, {}, COUNT_TIMEOUT_S)
            good[name] += recovered
            said = "recovered" if recovered else "FAILED"
            print(f"restart {trial + 1}/{of}, {name}: {said} ({seconds:.1f} s)", file=sys.stderr, flush=True)
    return {name: (good[name], of) for name, (_, of) in contenders.items()}


def run(command: list[str], env: dict[str, str], timeout_s: float = TIMEOUT_S) -> tuple[bool, float, float | None, int]:
    """Recovered, seconds in all, seconds from the death to the last worker's first all_reduce, processes left."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(SCRIPT)
        start = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **env, "OMP_NUM_THREADS": "1", MARK: mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        seconds = time.monotonic() - start
        left = marked(mark)
        for pid in left:
            os.kill(pid, 9)
    dies = [float(text) for text in re.findall(r"DIES ([\d.]+)", output)]
    again = [float(text) for text in re.findall(r"AGAIN ([\d.]+)", output)]
    took = max(again) - dies[0] if dies and len(again) == 4 else None
    return process.returncode == 0 and took is not None, seconds, took, len(left)


def marked(mark: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def median(runs: list[tuple[bool, float, float | None, int]]) -> float | None:
    times = [took for _, _, took, _ in runs if took is not None]
    return statistics.median(times) if times else None


def report(name: str, runs: list[tuple[bool, float, float | None, int]]) -> None:
    good = sum(ok for ok, *_ in runs)
    took = median(runs)
    recovery = f"{took:.2f} s" if took is not None else "never"
    whole = statistics.median(seconds for _, seconds, _, _ in runs)
    left = sum(count for *_, count in runs)
    print(f"{name}: {good} of {len(runs)} recovered; death to all_reduce {recovery} (median); ", end="")
    print(f"whole run {whole:.2f} s (median); processes left: {left}")


if __name__ == "__main__":
    main()
