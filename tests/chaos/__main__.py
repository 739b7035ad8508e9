"""Plays the table of faults: `make chaos`.

    python -m tests.chaos [--row NAME] [--jobs N] [--write evidence/chaos.md]

Each row is played in a process and a folder of its own, which end with it. A line is printed as soon as a row is over.
The exit code is 1 if a promise was not kept.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.chaos.job import Broken, may_mount
from tests.chaos.row import Row
from tests.chaos.table import ROWS, markdown, observed_on

ROOT = Path(__file__).parents[2]
NOT_HERE = "not played: this machine allows no user namespace with mounts"


class Outcome(NamedTuple):
    """How a row ended. `is_kept`: None if it could not be played here."""

    row: Row
    is_kept: bool | None
    observed: str


def main() -> int:
    options = _options()
    if options.play:
        return _play(next(row for row in ROWS if row.name == options.play), Path(options.folder))
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    print(f"{len(rows)} rows, {options.jobs} at once", flush=True)
    alone = [row for row in rows if row.limit_s > 600]  # they have runs beside each other themselves
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(_told, [row for row in rows if row not in alone]))
    outcomes += [_told(row) for row in alone]
    broken = [outcome for outcome in outcomes if outcome.is_kept is False]
    print(f"{len(outcomes) - len(broken)} of {len(outcomes)} as promised")
    if options.write:
        before = observed_on(options.write.read_text()) if options.write.exists() else {}
        options.write.write_text(markdown(before | {outcome.row.name: outcome.observed for outcome in outcomes}))
    return int(bool(broken))


def _told(row: Row) -> Outcome:
    began = time.monotonic()
    outcome = played(row)
    result = {True: "kept", False: "BROKEN", None: "skipped"}[outcome.is_kept]
    print(f"{result:8}{time.monotonic() - began:5.0f} s  {row.name}: {outcome.observed}", flush=True)
    return outcome


def played(row: Row) -> Outcome:
    """Play a row in a process of its own and kill what is left of it."""
    if row.needs_mount and not may_mount():
        return Outcome(row, None, NOT_HERE)
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        command = [sys.executable, "-m", "tests.chaos", "--play", row.name, "--folder", folder]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                said = process.communicate(timeout=row.limit_s)[0].strip()
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGTERM)  # it leaves its blocks, which kill what they have started
                said = f"not over after {row.limit_s:g} s; {process.communicate()[0].strip()}"
        return Outcome(row, process.returncode == 0, said.splitlines()[-1] if said else "it said nothing")


def _play(row: Row, folder: Path) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        print(row.play(folder))
    except Broken as broken:
        print(broken)
        return 1
    except Exception as error:
        traceback.print_exc()
        print(" ".join(f"{type(error).__name__}: {error}".split())[:300])
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", help="play this row alone; may be given again")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="rows at once (%(default)s)")
    parser.add_argument("--write", type=Path, help="write what was observed into this page; other rows stay")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
