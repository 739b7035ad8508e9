"""What flowdist costs beside torchrun, and beside nothing: at the start, and while nothing happens.

    python benchmarks/overhead.py [--trials 5] [--workers 1,8,50,200] [--seconds 60] [--write-docs]

Start: a script that imports torch and ends, alone, under torchrun and under flowdist, turn by turn: the whole command,
and how long it takes until the last worker has imported torch. Steady state: workers that sleep, without torch, so that
200 fit, and four with torch; CPU seconds per minute and memory, by process, of all that is no worker. Memory is PSS,
pages that several processes share divided among them, with RSS beside it.
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
from typing import NamedTuple

from launchers import LOOK_S, own_descendants
from sections import write_section

from flowdist.runtime.processes.reaper import descendants, kill_descendants

SCRIPT = """
import time
import torch
torch.ones(1).add_(1)
print(f"THERE {time.time():.6f}", flush=True)
"""
IDLE = """#!{python}
import os, time
{imports}
with open(f"up.{{os.environ['RANK']}}", "w") as file:
    file.write(str(os.getpid()))
time.sleep(3600)
"""
TICKS = os.sysconf("SC_CLK_TCK")
TIMEOUT_S = 180.0
OURS = ("controller_main", "guardian", "store_host", "flowdist run", "torch.distributed.run", "idle.py")
NAMES = {
    "controller_main": "controller",
    "guardian": "guardian, agent and spawner",
    "store_host": "store host",
    "flowdist run": "supervisor",
    "torch.distributed.run": "torchrun's agent",
    "idle.py": "prefix",
}


class Cost(NamedTuple):
    """Of one kind of process: CPU seconds a minute, MiB."""

    cpu_s: float
    pss_mib: float
    rss_mib: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--workers", default="1,8,50,200", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--write-docs", action="store_true", help="replace the tables of evidence/benchmarks.md")
    options = parser.parse_args()
    own_descendants()
    lines = [*start_table(options.trials), "", *steady_table(options.workers, options.seconds)]
    print("\n".join(lines))
    if options.write_docs:
        write_section("overhead", "\n".join(lines))


def start_table(trials: int) -> list[str]:
    """Medians in seconds, and their ratios."""
    contenders = {
        "python script.py": [sys.executable, "script.py"],
        "torchrun, 1 worker": [*torchrun(1), "script.py"],
        "flowdist, 1 worker": flowdist(1),
        "torchrun, 4 workers": [*torchrun(4), "script.py"],
        "flowdist, 4 workers": flowdist(4),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for trial in range(trials):
        for name, command in contenders.items():
            found[name].append(timed(command))
            whole, there = found[name][-1]
            print(f"{name}, trial {trial + 1}: {whole:.2f} s, there after {there:.2f} s", file=sys.stderr, flush=True)
    lines = ["| a script that imports torch | whole command | until the last worker has torch |", "|---|---|---|"]
    for name, times in found.items():
        whole, there = (statistics.median(column) for column in zip(*times, strict=True))
        lines.append(f"| {name} | {whole:.2f} s | {there:.2f} s |")
    alone, ours = (statistics.median(whole for whole, _ in found[name]) for name in list(found)[0:3:2])
    theirs4, ours4 = (statistics.median(there for _, there in found[name]) for name in list(found)[3:])
    lines.append("")
    lines.append(
        f"One worker: {ours - alone:+.2f} s beside plain Python. Four: {ours4 / theirs4:.2f} of torchrun's time."
    )
    return lines


def torchrun(procs: int) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(procs)]


def flowdist(procs: int) -> list[str]:
    return [sys.executable, "-m", "flowdist", "run", "script.py", "--replicas", f"1x{procs}"]


def timed(command: list[str]) -> tuple[float, float]:
    """Seconds of the whole command, and until the last worker had torch."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        Path(folder, "script.py").write_text(SCRIPT)
        start = time.time()
        try:
            done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        finally:
            whole = time.time() - start
            kill_descendants()
    there = [float(text) for text in re.findall(r"THERE ([\d.]+)", done.stdout)]
    if done.returncode or not there:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return whole, max(there) - start


def steady_table(workers: list[int], seconds: float) -> list[str]:
    lines = ["| workers that sleep | | process | CPU s a minute | PSS MiB | RSS MiB |", "|---|---|---|---|---|---|"]
    kinds = [(count, "") for count in workers] + [(4, "import torch")]
    for count, imports in kinds:
        for who in ("torchrun", "flowdist"):
            what = f"{count}, with torch" if imports else str(count)
            print(f"{what} under {who}: {seconds:.0f} s ...", file=sys.stderr, flush=True)
            costs = steady(who, count, seconds, imports)
            total = Cost(*(sum(column) for column in zip(*costs.values(), strict=True)))
            for name, cost in [*costs.items(), ("all", total)] if len(costs) > 1 else costs.items():
                figures = f"{cost.cpu_s:.2f} | {cost.pss_mib:.0f} | {cost.rss_mib:.0f}"
                lines.append(f"| {what} | {who} | {name} | {figures} |")
    return lines


def steady(who: str, workers: int, seconds: float, imports: str) -> dict[str, Cost]:
    """What all processes but the workers cost, once all workers are up."""
    with tempfile.TemporaryDirectory(prefix="bench") as folder:
        script = Path(folder, "idle.py")
        script.write_text(IDLE.format(python=sys.executable, imports=imports))
        script.chmod(0o755)
        command = [*torchrun(workers), "--no-python", "./idle.py"]
        if who == "flowdist":
            command = [sys.executable, "-m", "flowdist", "run", "idle.py", "--replicas", f"1x{workers}"]
        try:
            with Path(folder, "output.txt").open("wb") as output:
                subprocess.Popen(command, cwd=folder, stdout=output, stderr=output)
            until_up(Path(folder), workers)
            time.sleep(10.0)  # what is prepared for later is prepared now
            working = {int(file.read_text()) for file in Path(folder).glob("up.*")}
            before = ticks(working)
            time.sleep(seconds)
            return cost_of(before, ticks(working), seconds)
        finally:
            kill_descendants()


def until_up(folder: Path, workers: int) -> None:
    end = time.monotonic() + TIMEOUT_S
    while sum(bool(file.read_text()) for file in folder.glob("up.*")) < workers:
        if time.monotonic() > end:
            raise SystemExit(f"not all are up:\n{(folder / 'output.txt').read_text()}")
        time.sleep(LOOK_S)


def ticks(working: set[int]) -> dict[int, tuple[str, int]]:
    """What each process that is no worker has used so far."""
    found = {}
    for pid in set(descendants(os.getpid())) - working:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        kind = next((kind for kind in OURS if kind in words), None)
        if kind is not None:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            found[pid] = (NAMES[kind], int(fields[11]) + int(fields[12]))
    return found


def cost_of(before: dict[int, tuple[str, int]], after: dict[int, tuple[str, int]], seconds: float) -> dict[str, Cost]:
    costs: dict[str, Cost] = {}
    for pid, (name, used) in after.items():
        cpu_s = (used - before.get(pid, (name, used))[1]) / TICKS * 60 / seconds
        memory = dict(
            re.findall(r"^(Pss|Rss):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        )
        sum_ = costs.get(name, Cost(0.0, 0.0, 0.0))
        mib = {kind: int(text) / 1024 for kind, text in memory.items()}
        costs[name] = Cost(sum_.cpu_s + cpu_s, sum_.pss_mib + mib["Pss"], sum_.rss_mib + mib["Rss"])
    return costs


if __name__ == "__main__":
    main()
