"""Engines: what starts the members of a job on other machines: local processes, people, or Slurm.

A member is a process, `flowdist join`, with one node. Engines submit, cancel, signal and observe; `control.fleet`
decides. All pass tests/engines/test_conformance.py. A new engine is a module or folder here, and a line of `ENGINES`.
`jobset` is none: Kubernetes starts the members of its jobs, from what `flowdist export` writes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from flowdist.engines.interface import Engine

ENGINES = {  # the module and the class behind each word of `--on`
    "slurm": ("slurm.engine", "Slurm"),
    "local": ("local", "LocalProcesses"),
    "hand": ("by_hand", "ByHand"),
}


def engine_of(name: str) -> type[Engine]:
    """Return the engine behind a word of `--on`, a key of `ENGINES`; only this one is imported."""
    module, kind = ENGINES[name]
    return cast("type[Engine]", getattr(import_module(f"{__name__}.{module}"), kind))
