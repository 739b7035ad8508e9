"""`prove` in a test: the verb `flowdist prove`, whose findings fail the test."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any


def prove(
    target: str | Path,
    *args: str,
    folder: str | Path | None = None,
    procs: int | str | None = None,
    budget: str | None = None,
    only: tuple[str, ...] = (),
    power: bool = False,
    tolerance: float | None = None,
    corpus: str | Path | None = None,
) -> dict[str, Any]:
    """Kill a script, or the workers of a topology, at every point that matters, and demand that nothing is found.

    It starts real processes, in a copy of the folder. `docs/prove.md` says what is compared.

    Args:
        target: The script or topology.
        args: The script's own arguments.
        folder: The folder in which it runs, and which is copied; None: the current one.
        procs: How many workers the script has; None: 2. "1:3" if it may have fewer.
        budget: A time such as "5m": the most telling points first.
        only: The names of points, to try these alone.
        power: Whether to try also that the machine loses its power.
        tolerance: By how much of its value a loss may differ; None: nothing may.
        corpus: A file that keeps the points that have shown something, which are tried first.

    Returns:
        What `flowdist prove --json` prints.

    Raises:
        AssertionError: Something was found; the message has each finding with the command that shows it again.
        RuntimeError: The script cannot be proved; the message says why.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    words = [sys.executable, "-m", "flowdist", "prove", str(target), "--json"]
    words += ["--procs", str(procs)] if procs is not None else []
    words += ["--budget", budget] if budget is not None else []
    words += [word for name in only for word in ("--only", name)]
    words += ["--power"] if power else []
    words += ["--corpus", str(Path(corpus).absolute())] if corpus is not None else []
    words += ["--tolerance", str(tolerance)] if tolerance is not None else []
    words += ["--", *args] if args else []
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    try:
        proof: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(f"{shlex.join(words)} ended with {done.returncode}:\n{done.stderr}") from None
    if "found" not in proof:
        raise RuntimeError(f"{target} cannot be proved: {proof['problems'][0]['message']}")
    if proof["found"]:
        raise AssertionError(f"{target}: {len(proof['found'])} found\n" + "\n".join(map(_told, proof["found"])))
    return proof


def _told(finding: dict[str, Any]) -> str:
    place = f" ({finding['place']})" if finding["place"] else ""
    return f"{finding['kind']}: {finding['text']}{place}\n  help: {finding['help']}\n  again: {finding['again']}"
