"""Plays the tests of PyTorch and TorchX: `python -m tests.peers [--quick] [--case NAME] [--write evidence/peers.md]`.

A line is printed for each case, and the exit code is 1 if flowdist does not do what the table says.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.peers.case import Case
from tests.peers.runs import Runs
from tests.peers.table import CASES, markdown


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # runs end with their blocks
    options = _options()
    if options.write:
        options.write.write_text(markdown())
        return 0
    chosen = [case for case in CASES if not options.case or any(name in case.id for name in options.case)]
    chosen = [case for case in chosen if not (options.quick and case.is_real)]
    with tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder:
        runs = Runs(Path(folder))
        wrong = [case.id for case in chosen if not _played(case, runs)]
    print(
        f"{len(chosen) - len(wrong)} of {len(chosen)} cases are as the table says"
        + "".join(f"\n  {id}" for id in wrong)
    )
    return int(bool(wrong))


def _played(case: Case, runs: Runs) -> bool:
    began = time.monotonic()
    try:
        case.play(runs)
    except Exception:
        print(f"{'WRONG':8}{time.monotonic() - began:6.1f} s  {case.id}: {case.what}", flush=True)
        traceback.print_exc()
        return False
    print(f"{case.stance:8}{time.monotonic() - began:6.1f} s  {case.id}: {case.what}", flush=True)
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only cases that start no process")
    parser.add_argument("--case", action="append", help="only cases with this in their name; may be given again")
    parser.add_argument("--write", type=Path, help="write the table into this page, and play nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
