"""Plays everything that needs a GPU, and prints one table: `make gpu`.

    python -m tests.gpu [--row NAME] [--rehearse] [--write-docs]

Exit codes: 0: every promise was kept; 1: one was not; 4: this machine cannot play it, for the reason that is printed.
`--rehearse` plays the rows on the CPU with made-up GPUs, which shows that the command works, and nothing about GPUs.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from flowdist.runtime.gpus.devices import find_gpus
from flowdist.runtime.gpus.driver import Gpu
from flowdist.text.printable import table
from tests.gpu.bench import Bench, Broken
from tests.gpu.rows import ROWS, Row

NOT_HERE = 4
TOTAL_S = 570.0  # for all rows: the command takes less than ten minutes
DOCS = Path(__file__).parents[2] / "evidence/benchmarks.md"
BEGIN, END = "<!-- gpu: begin -->\n", "<!-- gpu: end -->"


class Outcome(NamedTuple):
    """How a row ended. `is_kept`: None if it was not played."""

    row: Row
    is_kept: bool | None
    observed: str
    seconds: float


def main() -> int:
    options = _options()
    gpus = made_up() if options.rehearse else find_gpus(os.environ)
    if not options.rehearse and (reason := why_not_here(gpus, torch_devices(), has_nvml())):
        print(f"make gpu: not played: {reason}", file=sys.stderr)
        return NOT_HERE
    until = time.monotonic() + TOTAL_S
    outcomes = []
    for row in (row for row in ROWS if not options.row or row.name in options.row):
        outcomes.append(played(row, gpus, options.rehearse, until))
        print(f"{row.name}: {_result(outcomes[-1])}, {outcomes[-1].seconds:.0f} s", file=sys.stderr, flush=True)
    print("\n".join(table([("row", "promise", "result", "took", "observed"), *map(_cells, outcomes)])))
    if options.write_docs and not options.rehearse:
        write_docs(outcomes, gpus)
    return int(any(outcome.is_kept is False for outcome in outcomes))


def why_not_here(gpus: Sequence[Gpu], devices: int | None, nvml: bool) -> str:
    """Return why nothing can be played on this machine; empty if it can.

    Args:
        gpus: The GPUs that flowdist finds.
        devices: How many devices torch can use; None: torch is not installed.
        nvml: Whether nvidia-ml-py is installed.
    """
    if not gpus:
        return "this machine has no GPU that flowdist can find (flowdist gpus)"
    if devices is None:
        return "torch is not installed"
    if not devices:
        return f"this machine has {len(gpus)} GPU(s), but this torch cannot use one: it needs a build with CUDA"
    return "" if nvml else "nvidia-ml-py is not installed: pip install 'flowdist[gpu]'"


def why_skipped(row: Row, gpus: Sequence[Gpu], is_rehearsal: bool, left_s: float) -> str:
    """Return why a row is not played; empty if it is."""
    if is_rehearsal and not row.can_rehearse:
        return "says nothing without a GPU"
    if len(gpus) < row.gpus_min:
        return f"needs {row.gpus_min} GPUs; this machine has {len(gpus)}"
    if row.needs and importlib.util.find_spec(row.needs) is None:
        return f"needs {row.needs}, which is not installed"
    return "the time for all rows is over" if left_s < 10 else ""


def played(row: Row, gpus: Sequence[Gpu], is_rehearsal: bool, until: float) -> Outcome:
    """Play a row in a folder of its own, within its own limit and that of all rows."""
    began = time.monotonic()
    if why := why_skipped(row, gpus, is_rehearsal, until - began):
        return Outcome(row, None, why, 0.0)
    limit_s = row.limit_s * (6 if is_rehearsal else 1)  # a rehearsal proves no time
    with tempfile.TemporaryDirectory(prefix="gpu-", ignore_cleanup_errors=True) as folder:
        bench = Bench(
            Path(folder), gpus, is_rehearsal, min(until, began + limit_s) if not is_rehearsal else began + limit_s
        )
        try:
            observed, is_kept = row.play(bench), True
        except Broken as broken:
            observed, is_kept = str(broken), False
        except Exception as error:
            observed, is_kept = f"{type(error).__name__}: {error}", False
    return Outcome(row, is_kept, " ".join(observed.split())[:600], time.monotonic() - began)


def torch_devices() -> int | None:
    """Return how many devices torch can use, from a process of its own; None if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        return None
    command = [
        sys.executable,
        "-c",
        "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)",
    ]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return int(asked.stdout.split()[-1]) if asked.returncode == 0 else 0


def has_nvml() -> bool:
    """Return whether nvidia-ml-py is installed."""
    return importlib.util.find_spec("pynvml") is not None


def made_up() -> tuple[Gpu, ...]:
    """Return the GPUs of a rehearsal."""
    return tuple(Gpu(str(number), f"GPU-{number}", "rehearsal") for number in range(2))


def _result(outcome: Outcome) -> str:
    return {True: "kept", False: "BROKEN", None: "not played"}[outcome.is_kept]


def _cells(outcome: Outcome) -> tuple[str, ...]:
    return outcome.row.name, outcome.row.promise, _result(outcome), f"{outcome.seconds:.0f} s", outcome.observed


def markdown(outcomes: Sequence[Outcome], gpus: Sequence[Gpu]) -> str:
    """Return the table for the docs."""
    head = f"Measured on {len(gpus)} x {gpus[0].model or 'a GPU of unknown model'}.\n\n"
    lines = ["| row | promise | result | observed |", "|---|---|---|---|"]
    cells = ([cell.replace("|", "\\|") for cell in _cells(outcome)] for outcome in outcomes)
    return head + "\n".join(
        [*lines, *(f"| {name} | {promise} | {result} | {seen} |" for name, promise, result, _, seen in cells)]
    )


def write_docs(outcomes: Sequence[Outcome], gpus: Sequence[Gpu], page: Path = DOCS) -> None:
    """Put the table into evidence/benchmarks.md, between its marks."""
    head, _, rest = page.read_text().partition(BEGIN)
    _, found, tail = rest.partition(END)
    if not found:
        raise SystemExit(f"{page} has lost its marks: {BEGIN.strip()} and {END}")
    page.write_text(f"{head}{BEGIN}{markdown(outcomes, gpus)}\n{END}{tail}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", action="append", choices=[row.name for row in ROWS], help="only this row")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with made-up GPUs")
    parser.add_argument("--write-docs", action="store_true", help="put the table into evidence/benchmarks.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
