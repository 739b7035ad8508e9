"""Reading of `preload=`: modules that are imported once for all workers of a node, before these are forked."""

from __future__ import annotations

import sys
from pathlib import Path

from flowdist.dsl.read.commands import has_module
from flowdist.dsl.read.fields import Fields
from flowdist.dsl.topology import WAYS
from flowdist.graph import RoleSpec
from flowdist.graph.warmth import PythonCommand, cold_because, python_command


def read_preload(fields: Fields, command: tuple[str, ...], workdir: Path) -> tuple[str, ...]:
    """Return the modules in the role's `preload=`; add errors for unknown ones.

    Args:
        fields: The arguments of the role.
        command: Command of the role.
        workdir: Folder in which its workers run.
    """
    python = python_command(command)
    folder = workdir
    if isinstance(python, PythonCommand) and not python.is_module:
        folder = (workdir / python.target).parent
    names = fields.words("preload")
    for i, name in enumerate(names):
        if not has_module(name, folder):
            is_text = isinstance(fields.values["preload"], str)
            place = fields.place("preload") if is_text else fields.element("preload", i)
            help = "check its spelling, or install it"
            fields.error("FD109", "preload", f"module {name!r} is not found", help, place)
    return names


def warn_if_cold(fields: Fields, spec: RoleSpec) -> None:
    """Add a warning if the role has `preload=` or `warm=True`, but its workers cannot be forked (FD305)."""
    asked = "preload" if fields.values["preload"] else "warm" if fields.values["warm"] else ""
    if asked and not fields.is_wrong(*WAYS) and (why := cold_because(spec, sys.executable, sys.executable)):
        help = "leave it out, or see docs/warm_starts.md"
        fields.warn("FD305", asked, f"{asked}= has no effect, because workers start cold: {why}", help)
