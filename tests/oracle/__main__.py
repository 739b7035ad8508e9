"""Compare scripts under torchrun and under flowdist: `python -m tests.oracle [--only NAME] [--list] [--json]`."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests import handlers
from tests.oracle.cases import all_cases
from tests.oracle.differences import name_of
from tests.oracle.judge import Difference, subject
from tests.oracle.launchers import LAUNCHERS
from tests.oracle.verdict import Verdict, verdict_of

FIRST_DIFFERENCES = 5  # of each situation, in the table
TOLD_FIRST = ("own: ", "exit code", "stdout", "the case")  # what the script itself has computed


def main() -> int:
    """Run the cases, print the table, and return 1 if there is a difference that has no name."""
    given = _arguments()
    cases = [case for case in all_cases() if not given.only or any(part in case.name for part in given.only)]
    if given.list:
        for case in cases:
            print(f"{case.name:40} {case.about}")
        return 0
    handlers.restore()
    work = Path(given.work or tempfile.mkdtemp(prefix="oracle-")).resolve()
    verdicts = []
    with get_context("fork").Pool(given.jobs) as pool:  # processes with one thread each: they fork torchrun
        for verdict in pool.imap(partial(verdict_of, work=work, launcher=given.launcher, fresh=given.fresh), cases):
            verdicts.append(verdict)
            if not given.json:
                print(_row(verdict, given.all), flush=True)
    if given.json:
        print(json.dumps([_as_json(verdict) for verdict in verdicts], indent=1))
    if not given.work and not given.keep:
        shutil.rmtree(work, ignore_errors=True)
    return _summary(verdicts, to=sys.stderr if given.json else sys.stdout)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="cases whose name contains this; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="the cases, and what each is about")
    parser.add_argument("--json", action="store_true", help="every difference, with its whole values")
    parser.add_argument("--all", action="store_true", help="every difference in the table, the named ones too")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument(
        "--fresh", action="store_true", help="run torchrun again, also where its notes are kept in build/"
    )
    parser.add_argument(
        "--launcher",
        default="flowdist",
        choices=list(LAUNCHERS),
        help="torchrun: is the oracle quiet? naive, which forks without care: is it loud?",
    )
    parser.add_argument("--work", metavar="FOLDER", help="where the cases are played, kept afterwards")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    return parser.parse_args()


def _row(verdict: Verdict, everything: bool) -> str:
    if verdict.skipped:
        return f"{verdict.case.name:36} skipped: {verdict.skipped}"
    lines = [f"{verdict.case.name:36} " + "  ".join(f"{run} {verdict.word(run)}" for run in verdict.situations)]
    told: set[str] = set()
    for situation in verdict.situations:
        found = [d for d in verdict.differences if d.key.situation == situation and (everything or name_of(d) is None)]
        new = {text: difference for difference in reversed(found) if (text := _text(difference)) not in told}
        told.update(new)
        ordered = sorted(new, key=lambda text: not text.startswith(TOLD_FIRST))
        shown = ordered if everything else ordered[:FIRST_DIFFERENCES]
        lines += [f"    {situation}: {_process(new[text])}{text}" for text in shown]
        lines += [f"    {situation}: {len(new) - len(shown)} more entries"] if len(new) > len(shown) else []
    return "\n".join(lines)


def _process(difference: Difference) -> str:
    attempt, _, rank = difference.key.process.partition("-")
    return f"attempt {attempt} rank {rank}: " if rank else ""


def _text(difference: Difference) -> str:
    """Return a difference without the point, the attempt and the rank: it is told once, for the first of them."""
    named = name_of(difference)
    return f"{subject(difference.key)}: {difference.values}" + (f"  [{named.reason}]" if named else "")


def _as_json(verdict: Verdict) -> dict[str, object]:
    found = []
    for difference in verdict.differences:
        named = name_of(difference)
        values = {"expected": difference.expected, "found": difference.found, "named": named.reason if named else None}
        found.append({**difference.key._asdict(), "situation": difference.key.situation, **values})
    return {"case": verdict.case.name, "skipped": verdict.skipped, "differences": found}


def _summary(verdicts: list[Verdict], to: object) -> int:
    played = [verdict for verdict in verdicts if not verdict.skipped]
    bad = [verdict for verdict in played if verdict.unnamed]
    count = sum(len(verdict.unnamed) for verdict in bad)
    print(
        f"{len(played)} scripts, {len(verdicts) - len(played)} skipped: {len(played) - len(bad)} as under torchrun or "
        f"with named differences alone, {len(bad)} DIFFERENT ({count} entries)",
        file=to,
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
