"""Run a case under a launcher, in a folder of its own, and collect what its ranks observed and left behind."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracle.cases import SCRIPTS, TIMEOUT_S, Case
from tests.oracle.launchers import BIN, LAUNCHERS

Observation = dict[
    str, Any
]  # what one run showed: the exit code, each process by "attempt-rank", the files that are left
ROOT = str(Path(__file__).parents[2])
NOT_OURS = re.compile(r"__pycache__/(probe|surroundings)\.|^probe\.py$|^surroundings\.py$")
TEMPORARY = re.compile(r"(?<=tmp|mp-|er-)[a-z0-9_]{8}(?=/|$|wandb-)")  # tmpxxxxxxxx, pymp-xxxxxxxx, listener-xxxxxxxx
ADDRESS = re.compile(r"0x[0-9a-f]{9,}")


def play(case: Case, launcher: str, folder: Path) -> dict[str, Observation]:
    """Run the case as its user would: twice, and once more after the edit. Return what each run showed."""
    job = folder / "job"
    if case.source.is_dir():
        shutil.copytree(case.source, job, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        job.mkdir(parents=True)
        shutil.copy(case.source, job)
    for name in ("probe.py", "surroundings.py"):
        shutil.copy(SCRIPTS / name, job)
    (folder / "home").mkdir()
    words = case.words or (case.script,)
    observed = {}
    for run in ("first", "second"):
        observed[run] = _run(case, launcher, folder, (*words, *case.arguments), dict(case.env))
    if case.edit is not None:
        case.edit.apply(job)
        arguments = case.arguments if case.edit.arguments is None else case.edit.arguments
        observed["edited"] = _run(case, launcher, folder, (*words, *arguments), {**case.env, **case.edit.env})
    return observed


def _run(case: Case, launcher: str, folder: Path, words: tuple[str, ...], env: dict[str, str]) -> Observation:
    for name in ("notes", "logs", "tmp"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    options = (
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--log-dir",
        str(folder / "logs"),
        "-r",
        "3",
        *case.options,
    )
    base = {
        "PATH": f"{BIN}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
    }
    ended = LAUNCHERS[launcher]([*options, *words], folder / "job", base | env, TIMEOUT_S)
    return _scrubbed(
        {
            "exit code": f"none after {TIMEOUT_S} s" if ended.code is None else ended.code,
            "processes": {name: _process(folder, name, path) for name, path in _logs(folder / "logs")},
            "files": {**_tree(folder / "job", "job"), **_tree(folder / "tmp", "tmp")},
            "said": ended.said,
        },
        folder,
    )


def _logs(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the folder with the logs of each process, named "attempt-rank", attempts from 0."""
    for path in sorted(folder.rglob("stdout.log")):
        attempt = path.parts[-3].removeprefix("attempt_")
        if attempt.isdigit():  # flowdist keeps those of stores, too
            is_flowdist = path.parts[-5:-3] == ("default", "0")  # attempts from 1
            yield f"{int(attempt) - is_flowdist}-{path.parts[-2]}", path.parent


def _process(folder: Path, name: str, logs: Path) -> dict[str, Any]:
    place = folder / "notes" / f"{name}.json"
    points: dict[str, Any] = {}
    if place.exists():
        for point, values in json.loads(place.read_text())["notes"]:
            points[f"{point} ({len(points)})" if point in points else point] = values
    texts = {
        stream: (logs / f"{stream}.log").read_text(errors="replace").splitlines() for stream in ("stdout", "stderr")
    }
    return {**texts, "notes": points}


def _tree(folder: Path, name: str) -> dict[str, str]:
    """Return the files below a folder, with the text of small ones; random parts of temporary names are not kept."""
    labelled = []
    for path in folder.rglob("*"):
        inside = str(path.relative_to(folder))
        if NOT_OURS.search(inside) or inside.endswith(".pyc"):
            continue
        small = path.is_file() and path.stat().st_size < 10_000
        text = path.read_text(errors="replace") if small else "folder" if path.is_dir() else "large"
        labelled.append((f"{name}/{TEMPORARY.sub('*', inside)}", text))
    found: dict[str, str] = {}
    for label, text in sorted(labelled):  # random names are in no order
        while label in found:
            label += " and another"
        found[label] = text
    return found


def _scrubbed(value: Any, folder: Path) -> Any:
    """Replace what only tells folders apart: where the case was played, where logs are, and which checkout this is."""
    if isinstance(value, str):
        text = value.replace(str(folder), "<work>")
        text = re.sub(r"^(pipe|socket):\[\d+\]$", r"\1", text)
        text = ADDRESS.sub("0x*", text.replace(sys.prefix, "<venv>").replace(ROOT, "<repository>"))
        return re.sub(r"<work>/logs/\S*?/(stdout\.log|stderr\.log|error\.json)", r"<log>/\1", text)
    if isinstance(value, dict):
        return {_scrubbed(name, folder): _scrubbed(item, folder) for name, item in value.items()}
    if isinstance(value, list):
        return [_scrubbed(item, folder) for item in value]
    return value
