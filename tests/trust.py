"""Measure how far a green or red `make test` can be trusted: `make trust`, or `python -m tests.trust`.

Its tests run 20 times in a row on a machine that should have nothing else to do, and 5 times beside 8 busy processes.
A red run does not stop the others. At the end there is a table of all runs, and which tests have failed how often.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BUSY = "while True: pass"
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+.*?)(?: - .*)?$", re.MULTILINE)


class Run(NamedTuple):
    """One run of `make test`. `failed`: the names of the tests that were red."""

    number: int
    load: int
    seconds: float
    code: int
    failed: tuple[str, ...]

    def __str__(self) -> str:
        result = (
            "passed" if self.code == 0 else f"FAILED (exit code {self.code}): {', '.join(self.failed) or 'no test'}"
        )
        return f"run {self.number:2}  load {self.load:2}  {self.seconds:6.0f} s  {result}"


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many processes busy meanwhile."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run(number: int, load: int, command: list[str], log: Path) -> Run:
    """Run the command beside the load, with its output in the log."""
    began = time.monotonic()
    with busy(load), log.open("w") as output:
        done = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    failed = FAILED.findall(log.read_text(errors="replace"))
    return Run(number, load, time.monotonic() - began, done.returncode, tuple(dict.fromkeys(failed)))


def main() -> int:
    options = _options()
    options.logs.mkdir(parents=True, exist_ok=True)
    print(f"{options.runs} runs, and {options.loaded_runs} beside {options.load} busy processes; logs: {options.logs}")
    if (busy_now := os.getloadavg()[0]) > 1:
        print(f"warning: the machine is not idle (load average {busy_now:.1f})")
    loads = [0] * options.runs + [options.load] * options.loaded_runs
    runs = []
    for number, load in enumerate(loads, 1):
        runs.append(run(number, load, shlex.split(options.command), options.logs / f"run{number}.log"))
        print(runs[-1], flush=True)
    print("\n" + table(runs))
    return int(any(each.code for each in runs))


def table(runs: list[Run]) -> str:
    """Return a line for each load, and one for each test that has failed."""
    lines = ["  load  runs  passed  shortest  longest"]
    for load in dict.fromkeys(each.load for each in runs):
        some = [each for each in runs if each.load == load]
        passed, seconds = sum(each.code == 0 for each in some), [each.seconds for each in some]
        lines.append(f"{load:6}{len(some):6}{passed:8}{min(seconds):8.0f} s{max(seconds):7.0f} s")
    counts = Counter(name for each in runs for name in each.failed)
    return "\n".join(lines + [f"failed {count} of {len(runs)} times: {name}" for name, count in counts.most_common()])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="on an idle machine (%(default)s)")
    parser.add_argument("--loaded-runs", type=int, default=5, help="beside busy processes (%(default)s)")
    parser.add_argument("--load", type=int, default=8, help="how many busy processes (%(default)s)")
    parser.add_argument("--logs", type=Path, default=ROOT / "runs/trust", help="folder of the output (%(default)s)")
    parser.add_argument("--command", default="make test", help="what is run (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
