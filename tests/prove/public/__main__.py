"""`python -m tests.prove.public [NAME ...] [--write FILE]`: bugs that others have reported, found by `flowdist prove`.

Each script here is what a user of a package writes. It runs with the version that has the bug, as pip installs it, and
`flowdist prove` has to find the bug by its kind. Where a later version has it no more, the same point has to show
nothing of that kind there. torch and what the packages need besides come from the environment of `make frameworks`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

SCRIPTS = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "flowdist-public-bugs"
DATASETS_NEED = (
    "pyarrow==24.0.0 pandas==3.1.1 xxhash==4.1.0 multiprocess==0.70.19 python-dateutil==2.9.0.post0 six==1.17.0 "
    "httpx==0.28.1 httpcore==1.0.9 anyio==4.12.1 sniffio==1.3.1"
)
URLS = {
    "accelerate": "huggingface/accelerate",
    "data": "meta-pytorch/data",
    "datasets": "huggingface/datasets",
    "prime-rl": "PrimeIntellect-ai/prime-rl",
    "pytorch-lightning": "Lightning-AI/pytorch-lightning",
    "transformers": "huggingface/transformers",
}


class Bug(NamedTuple):
    """A bug that was reported: the versions that have it and that have it no more, and as what it has to be found."""

    script: str
    issue: str
    what: str
    versions: str  # as pip has them
    fixed: str  # the newest; empty: the bug is in the newest
    point: str  # empty: whichever shows something first
    kinds: tuple[str, ...]
    procs: int = 1
    fixed_point: str | None = None  # with the newest, if it is another; empty: all points


BUGS = [
    Bug(
        "accelerate_3938", "accelerate#3938", "the saved position of a stateful loader is one batch behind",
        "accelerate==1.12.0", "accelerate==1.15.0", "step15", ("data again",), procs=2,
    ),
    Bug(
        "accelerate_3996", "accelerate#3996", "each resume begins with the order of epoch 0",
        "accelerate==1.15.0", "", "step10", ("data again",), procs=2,
    ),
    Bug(
        "accelerate_4071", "accelerate#4071", "skip_first_batches goes back to the order of epoch 0",
        "accelerate==1.14.0", "accelerate==1.15.0", "step15", ("data again",),
    ),
    Bug(
        "accelerate_4195", "accelerate#4195", "a stateful loader restores the position and not the order",
        "accelerate==1.15.0", "", "step15", ("data again",), procs=2,
    ),
    Bug(
        "accelerate_4233", "accelerate#4233", "after skip_first_batches, the next epoch has the same order again",
        "accelerate==1.15.0", "", "step9", ("data again",),
    ),
    Bug(
        "datasets_8145", "datasets#8145", "after map(), a resume skips up to a thousand rows",
        f"datasets==4.8.4 {DATASETS_NEED}", f"datasets==5.2.0 {DATASETS_NEED}", "step9", ("data again",),
    ),
    Bug(
        "datasets_8308", "datasets#8308", "after a resume, the state that is saved stays at the beginning",
        f"datasets==5.0.0 {DATASETS_NEED}", f"datasets==5.2.0 {DATASETS_NEED}", "step9", ("the end",),
    ),
    Bug(
        "lightning_18060", "pytorch-lightning#18060", "counters of the loop are saved one batch behind",
        "lightning==2.4.0", "lightning==2.6.6", "step8", ("the end",),
    ),
    Bug(
        "lightning_19970", "pytorch-lightning#19970", "a checkpoint is written in place",
        "lightning==2.3.3 setuptools==80.9.0", "lightning==2.6.6",
        "save2:trainer.0:write2:ckpt/last.ckpt:half", ("torn save",), fixed_point="",
    ),
    Bug(
        "prime_rl_3332", "prime-rl#3332", "iter() before load_state_dict(), with a worker: the data begins anew",
        "torchdata==0.11.0", "", "step8", ("data again",),
    ),
    Bug(
        "torchdata_1437", "data#1437", "after a resume at the end of an epoch, the next one is empty",
        "torchdata==0.10.1", "torchdata==0.11.0", "step15", ("steps", "data again"),
    ),
    Bug(
        "transformers_35525", "transformers#35525", "the last checkpoint is chosen although it is not complete",
        "transformers==5.24.0", "", "save2:trainer.0:truncate:out/checkpoint-8/*:before", ("torn save",),
    ),
    Bug(
        "transformers_46628", "transformers#46628", "generators are set after the next batches have been fetched",
        "transformers==5.24.0", "", "step13", ("random numbers", "losses"),
    ),
]  # fmt: skip


class Recipe(NamedTuple):
    """A script that saves and resumes as its package's guide says, proved at all points with the newest version."""

    script: str
    versions: str
    says: str  # which guide


RECIPES = [
    Recipe("accelerate_4233", "accelerate==1.15.0", "examples/by_feature/checkpointing.py"),
    Recipe("lightning_recipe", "lightning==2.6.6", 'ModelCheckpoint with save_last, `fit(ckpt_path="last")`'),
    Recipe("torchdata_1437", "torchdata==0.11.0", "`StatefulDataLoader.state_dict()`, at the end of an epoch"),
    Recipe("transformers_35525", "transformers==5.24.0", "`get_last_checkpoint`, `train(resume_from_checkpoint=last)`"),
]


class Proof(NamedTuple):
    """What `flowdist prove` says of a script with some versions."""

    command: str
    found: list[dict[str, Any]]
    tried: int
    seconds: float
    error: str = ""


class Row(NamedTuple):
    bug: Bug
    proof: Proof
    newest: Proof | None
    is_good: bool


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="of scripts, or how they begin")
    parser.add_argument("--write", metavar="FILE", help="write the table into a page")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if not options.names or bug.script.startswith(tuple(options.names))]
    recipes = [recipe for recipe in RECIPES if not options.names or recipe.script in options.names]
    rows = [shown(played(bug)) for bug in bugs]
    newest = [
        (recipe, proved(recipe.script, recipe.versions, "--procs", "1", "--jobs", "1", "--budget", "90s"))
        for recipe in recipes
    ]
    for recipe, proof in newest:
        print(f"newest {recipe.versions}: {_words(proof)} [{proof.tried} points, {proof.seconds:.0f} s]", flush=True)
    good = sum(row.is_good for row in rows)
    print(f"{good} of {len(rows)} public bugs are found by their kind, and not where they are fixed")
    if options.write:
        write(Path(options.write), table(rows), table_of_recipes(newest))
    sys.exit(good < len(rows))


def shown(row: Row) -> Row:
    mark = "ok    " if row.is_good else "WRONG "
    print(f"{mark} {row.bug.issue} with {row.bug.versions.split()[0]}: {_words(row.proof)} [{row.proof.seconds:.0f} s]")
    if row.newest:
        print(f"       with {row.bug.fixed.split()[0]}: {_words(row.newest)} [{row.newest.seconds:.0f} s]", flush=True)
    return row


def played(bug: Bug) -> Row:
    """Prove the script of a bug with the version that has it, and at the same point with the one that has it not."""
    at = ["--only", bug.point] if bug.point else ["--fail-fast"]
    proof = proved(bug.script, bug.versions, "--procs", str(bug.procs), *at)
    hits = [each for each in proof.found if each["kind"] in bug.kinds]
    if not bug.fixed:
        return Row(bug, proof, None, bool(hits))
    point = bug.fixed_point
    if point is None:
        point = hits[0]["point"] if hits else bug.point
    at = ["--only", point] if point else ["--jobs", "1"]  # one folder: Lightning saves its absolute path
    newest = proved(bug.script, bug.fixed, "--procs", str(bug.procs), *at)
    still = any(each["kind"] in bug.kinds for each in newest.found)
    return Row(bug, proof, newest, bool(hits) and not still and not newest.error)


def proved(script: str, versions: str, *options: str) -> Proof:
    """Return what `flowdist prove` says of a script with these versions of packages."""
    words = ["prove", f"{script}.py", *options]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, installed(versions)))}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SCRIPTS / f"{script}.py", folder)
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "flowdist", *words, "--json"],
            cwd=folder, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began
    command = shlex.join(["flowdist", *words])
    try:
        answer = json.loads(done.stdout)
        return Proof(command, answer["found"], len(answer["tried"]), seconds)
    except (ValueError, KeyError):
        return Proof(command, [], 0, seconds, error=(done.stdout + done.stderr)[-1000:])


def installed(versions: str) -> list[Path]:
    """Return folders that have these packages, each installed once, without what it depends on."""
    return [_installed(pin) for pin in versions.split()]


def _installed(pin: str) -> Path:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / f"{pin}-{hashlib.sha256(python.encode()).hexdigest()[:8]}"
    if not folder.exists():
        half = folder.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(half), pin], check=True, stderr=subprocess.DEVNULL)
        half.rename(folder)
    return folder


def _words(proof: Proof) -> str:
    if proof.error:
        return f"not proved: {proof.error}"
    return "; ".join(f"{each['kind']}: {each['text']}" for each in proof.found) or "nothing"


def write(path: Path, *tables: str) -> None:
    """Write the tables into a page, each below its mark up to the next empty line; the rest of the page stays."""
    for number, text in enumerate(tables, 1):
        before, rest = path.read_text().split(f"<!-- table {number} -->\n\n")
        path.write_text(f"{before}<!-- table {number} -->\n\n{text}\n{rest.partition(chr(10) * 2)[2]}")


def table(rows: list[Row]) -> str:
    lines = [
        "| issue | what it is | versions | found | where | points | with the newest |",
        "|---|---|---|---|---|---|---|",
    ]
    for bug, proof, newest, is_good in rows:
        name, number = bug.issue.split("#")
        link = f"[{bug.issue}](https://github.com/{URLS[name]}/issues/{number})"
        hits = [each for each in proof.found if each["kind"] in bug.kinds] or proof.found
        found = f"{hits[0]['kind']}: {hits[0]['text']}" if hits else _words(proof)
        place = f"{hits[0]['place']} `{hits[0]['point']}`".strip() if hits else ""
        after = "it is the newest" if newest is None else f"{bug.fixed.split()[0]}: {_words(newest)}"
        mark = "" if is_good else " (WRONG)"
        lines.append(
            f"| {link} | {bug.what} | {bug.versions.split()[0]} | {found}{mark} | {place} | {proof.tried} | {after} |"
        )
    return "\n".join(lines) + "\n"


def table_of_recipes(proofs: list[tuple[Recipe, Proof]]) -> str:
    lines = ["| version | recipe | script | found | points |", "|---|---|---|---|---|"]
    for recipe, proof in proofs:
        found = "<br>".join(f"{each['kind']}: {each['text']} (`{each['point']}`)" for each in proof.found)
        found = found or _words(proof)
        lines.append(f"| {recipe.versions} | {recipe.says} | {recipe.script}.py | {found} | {proof.tried} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
