"""The verdict on one case: play it twice under torchrun and once under flowdist, and compare.

What torchrun showed is kept in `build/oracle`, under the digest of the case's files, of what is installed, and of what
children of this process inherit.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.oracle.cases import Case
from tests.oracle.differences import name_of
from tests.oracle.judge import SITUATIONS, Difference, Key, differences
from tests.oracle.play import ROOT, Observation, play

HERE = Path(__file__).parent
INHERITED = ("Umask", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp", "Cpus_allowed", "CapEff", "Uid", "Gid", "Groups")
FORMAT = 3  # raise it when play.py keeps something else of a run
KEPT = HERE.parents[1] / "build" / "oracle"


@dataclass(frozen=True)
class Verdict:
    """What differs in one case, or why it was not played."""

    case: Case
    differences: tuple[Difference, ...] = ()
    skipped: str = ""

    @property
    def unnamed(self) -> list[Difference]:
        return [difference for difference in self.differences if name_of(difference) is None]

    @property
    def situations(self) -> list[str]:
        return [name for name in SITUATIONS if name != "edited" or self.case.edit is not None]

    def word(self, situation: str) -> str:
        """Return how a situation compares, in a word."""
        found = [difference for difference in self.differences if difference.key.situation == situation]
        if not found:
            return "equal"
        return "named difference" if all(name_of(difference) for difference in found) else "DIFFERENT"


def verdict_of(case: Case, work: Path, launcher: str = "flowdist", fresh: bool = False) -> Verdict:
    """Play a case in a folder below `work`, and judge it."""
    missing = case.missing()
    if missing:
        return Verdict(case, skipped=f"{', '.join(missing)} is not installed")
    folder = work / case.name.replace("/", "-")
    shutil.rmtree(folder, ignore_errors=True)
    try:
        return _judged(case, folder, launcher, fresh)
    except (OSError, ValueError) as error:  # the other cases are played all the same
        return Verdict(case, (Difference(Key("first", "", "the case cannot be played"), "", str(error)),))


def _judged(case: Case, folder: Path, launcher: str, fresh: bool) -> Verdict:
    reference, again = (_reference(case, folder, number, fresh) for number in (1, 2))
    tried = play(case, launcher, folder / "tried")
    return Verdict(case, tuple(differences(reference, again, tried, case.fails)))


def _reference(case: Case, folder: Path, number: int, fresh: bool) -> dict[str, Observation]:
    place = KEPT / f"{_digest(case)}-{number}.json"
    if place.exists() and not fresh:
        kept: dict[str, Observation] = json.loads(place.read_text())
        return kept
    observed = play(case, "torchrun", folder / f"torchrun{number}")
    KEPT.mkdir(parents=True, exist_ok=True)
    part = place.with_suffix(f".{os.getpid()}.part")  # another session may play the same case
    part.write_text(json.dumps(observed))
    part.replace(place)
    return json.loads(place.read_text())  # as it will be read: tuples are lists


def _digest(case: Case) -> str:
    """Return the digest of all that torchrun's notes of a case depend on."""
    digest = hashlib.sha256(repr((FORMAT, case, _installed(), _inherited())).encode())
    own = [HERE / "scripts/probe.py", HERE / "scripts/surroundings.py"]
    for path in (*sorted(case.source.rglob("*")), case.source, *own):
        if path.is_file() and path.suffix != ".pyc":
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:24]


def _inherited() -> list[str]:
    """Return what of this process its children inherit: make, for one, starts commands with a signal ignored."""
    status = Path("/proc/self/status").read_text()
    return [f"nice {os.nice(0)}", *(line for line in status.splitlines() if line.startswith(INHERITED))]


@cache
def _installed() -> tuple[str, ...]:
    names = {f"{found.metadata['Name']} {found.version}" for found in importlib.metadata.distributions()}
    folders = [path.replace(sys.prefix, "<venv>").replace(ROOT, "<repository>") for path in sys.path if "site-" in path]
    return (sys.version, *folders, *sorted(name for name in names if not name.startswith("flowdist")))
