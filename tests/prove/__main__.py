"""`python -m tests.prove [NAME ...] [--every N] [--write FILE] [--oracle]`: right scripts are green, bugs are found.

The scripts and bugs of `scripts/` were written by someone who had not seen the code of `flowdist prove`. A right script
has to show nothing at all of its points, and all but one in twenty of the bugs have to be found, each with a cause that
`CAUSES` takes for its kind. Without names all are tried.

With `--oracle` each script is proved with several points in one run and with a run for each, and both have to show the
same at each point.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.prove.scripts import planted, planted_topologies

SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = Path(__file__).parents[2] / "examples"
TOPOLOGIES = {  # by folder: where it is, and what is proved there
    "ps": (SCRIPTS / "ps", ["ps_topology.py"]),
    "char_gpt": (EXAMPLES / "char_gpt", ["topology.py", "-p", "trainers=2", "-p", "steps=24", "-p", "every=8"]),
}
ALONE = sorted(path.name for path in SCRIPTS.glob("*.py") if not path.name.startswith(("planted", "__")))
RIGHT = [*ALONE, *TOPOLOGIES]
BUGS = [*planted.BUGS, *planted_topologies.BUGS]
MISSED_MAX = 0.05
CAUSES = {  # which kinds of findings name a kind of bug
    "samples": {"data again", "steps", "losses", "random numbers"},
    "rng-python": {"random numbers", "data again"},
    "rng-numpy": {"random numbers", "data again", "server state"},
    "rng-torch": {"random numbers", "data again"},
    "schedule": {"schedule", "server state"},
    "scaler": {"scaler", "the end", "losses", "weights"},
    "ema": {"the end"},
    "best": {"the end"},
    "torn-save": {"torn save", "error", "lost save", "weights", "optimizer", "server state"},
    "removed-early": {"lost save", "torn save"},
    "rank0-only": {"random numbers", "data again", "optimizer", "weights", "losses", "server state"},
    "early-ack": {"torn save", "error", "lost save", "weights", "optimizer", "the end"},
    "newest-not-complete": {"torn save", "error", "lost save", "weights", "optimizer"},
    "off-by-one": {"steps", "data again", "schedule", "optimizer", "weights"},
    "optimizer-state": {"optimizer", "server state"},
    "weights": {"weights", "lost save", "server state"},
    "leftovers": {"leftovers"},
    "no-resume": {"lost save", "no resume"},
}


class Row(NamedTuple):
    """A script that was proved: what was wanted of it, and what was found."""

    name: str
    wanted: str
    found: str
    place: str
    point: str
    tried: int
    seconds: float
    is_good: bool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="of scripts and bugs, or how they begin")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="try each N-th bug only")
    parser.add_argument("--write", metavar="FILE", help="write the table into a page")
    parser.add_argument("--oracle", action="store_true", help="prove each script both ways, and compare")
    options = parser.parse_args()
    if options.oracle:
        same = [is_same(name) for name in options.names or [*RIGHT, *(bug[0] for bug in BUGS)]]
        sys.exit(not all(same))
    rows = []
    for name in RIGHT:
        if not options.names or name in options.names:
            rows.append(shown(right(name)))
    beginnings = tuple(name for name in options.names if name not in RIGHT)
    bugs = [bug for bug in BUGS if not options.names or bug[0].startswith(beginnings)]
    for bug in bugs[:: options.every]:
        rows.append(shown(wrong(*bug)))
    false_alarms = [row for row in rows if not row.wanted and not row.is_good]
    missed = [row for row in rows if row.wanted and not row.is_good]
    count = sum(bool(row.wanted) for row in rows)
    print(f"{len(rows) - count - len(false_alarms)} of {len(rows) - count} right scripts are green; "
          f"{count - len(missed)} of {count} bugs are found by their cause")  # fmt: skip
    if options.write:
        Path(options.write).write_text(page(rows))
    sys.exit(bool(false_alarms) or len(missed) > MISSED_MAX * count)


def shown(row: Row) -> Row:
    mark = "ok    " if row.is_good else "WRONG "
    print(f"{mark} {row.name}: {row.wanted or 'right'}: {row.found or 'nothing'} {row.place} "
          f"[{row.tried} points, {row.seconds:.0f} s]", flush=True)  # fmt: skip
    return row


def right(name: str) -> Row:
    """Prove a right script, or topology, at all of its points."""
    answer, seconds = proved(name)
    found = [*answer["found"], *([{"kind": "uneven", "place": "", "point": ""}] if answer["uneven"] else [])]
    return _row(name, "", found, answer, seconds, is_good=not found)


def wrong(name: str, script: str, kind: str, replacements: list[tuple[str, str]], where: str) -> Row:
    """Prove a script with a bug until something is found."""
    answer, seconds = proved(script, replacements, "--fail-fast")
    found = answer["found"]
    return _row(name, kind, found, answer, seconds, is_good=bool(found) and found[0]["kind"] in CAUSES[kind])


def is_same(name: str) -> bool:
    """Return whether a script or bug shows the same at each point in one run with others and in one of its own."""
    script, replacements = next(((bug[1], bug[3]) for bug in BUGS if bug[0] == name), (name, []))
    (quick, quick_s), (slow, slow_s) = (proved(script, replacements, *alone) for alone in ([], ["--alone"]))
    shown, alone = ({each["point"]: (each["came"], each["found"]) for each in by["tried"]} for by in (quick, slow))
    differ = sorted(point for point in {*shown, *alone} if shown.get(point) != alone.get(point))
    print(f"{'WRONG ' if differ or not shown else 'ok    '} {name}: {len(shown)} points in {quick_s:.0f} s, each alone "
          f"in {slow_s:.0f} s", *(f"\n    {each}: {shown.get(each)}, alone {alone.get(each)}" for each in differ),
          flush=True)  # fmt: skip
    return bool(shown) and not differ


def _row(
    name: str, wanted: str, found: list[dict[str, Any]], answer: dict[str, Any], seconds: float, *, is_good: bool
) -> Row:
    first = found[0] if found else {"kind": "", "place": "", "point": ""}
    return Row(name, wanted, first["kind"], first["place"], first["point"], len(answer["tried"]), seconds, is_good)


def proved(script: str, replacements: Sequence[tuple[str, str]] = (), *options: str) -> tuple[dict[str, Any], float]:
    """Return what `flowdist prove --json` says of a script, and how many seconds it took."""
    whole, words = TOPOLOGIES.get(script.partition("/")[0], (SCRIPTS, [script]))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(
            shutil.copytree(whole, Path(name) / "job", ignore=shutil.ignore_patterns("planted*", "__*", "ps"))
        )
        changed = folder / script.rpartition("/")[2]
        for old, new in replacements:
            text = changed.read_text()
            assert text.count(old) == 1, (script, old)
            changed.write_text(text.replace(old, new))
        began = time.monotonic()
        command = [sys.executable, "-m", "flowdist", "prove", *words, "--json", *options]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began
    answer: dict[str, Any] = json.loads(done.stdout or "{}")
    if "found" not in answer:
        answer |= {"found": [{"kind": "not proved", "place": done.stdout + done.stderr, "point": ""}], "tried": []}
        answer["uneven"] = ""
    return answer, seconds


def page(rows: list[Row]) -> str:
    """Return the table as a page."""
    lines = [
        "# Proof of proofs",
        "",
        "`python -m tests.prove --write evidence/prove.md` writes this page. Each script has two workers. A right one",
        "is killed at all of its points, one with a bug until something is found.",
        "",
        "| script | its bug | found | where | points tried | seconds |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.wanted or '-'} | {row.found or 'nothing'}{'' if row.is_good else ' (wrong)'} "
        f"| {row.place} | {row.tried} | {row.seconds:.0f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
