"""Run the campaign: `python -m tests.mutated [--cases N] [--jobs N] [--seed N]`, or one case: `... journal 17`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests.mutated.cases import KINDS, defects

GIVE_UP_S = 300  # after this the process of a case is stuck where no alarm reaches it


def run(case: tuple[str, int]) -> list[str]:
    """Return the defects of one case, which runs in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="mutated-") as folder:
        return list(defects(*case, Path(folder)))


def main() -> int:
    """Run the cases, print every defect, and return 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=list(KINDS))
    parser.add_argument("number", nargs="?", type=int)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case of each kind")
    given = parser.parse_args()
    kinds = [given.kind] if given.kind else list(KINDS)
    if given.number is not None:
        found = run((given.kind, given.number))
        print("\n".join(found) or "no defect")
        return 1 if found else 0
    cases = [(kind, given.seed + number) for number in range(given.cases // len(kinds)) for kind in kinds]
    counts: Counter[str] = Counter()
    with get_context("fork").Pool(given.jobs, maxtasksperchild=200) as pool:
        waits = [(case, pool.apply_async(run, (case,))) for case in cases]
        for case, wait in waits:
            found = wait.get(GIVE_UP_S)
            counts[case[0]] += bool(found)
            for text in found[:1]:
                print(f"--- {text}", flush=True)
    print(f"{len(cases)} cases, with defects: {sum(counts.values())} {dict(counts)}")
    return 1 if sum(counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
