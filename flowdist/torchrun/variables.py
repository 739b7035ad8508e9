"""The variables of torchrun and TorchX, and what becomes of them where flowdist starts.

The table in `variables.md`, which is part of the package, is the only source: it is shown in docs/torchrun.md and
docs/torchx.md, compared with torch's own source by a test, and used to name the variables that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Literal, NamedTuple

import msgspec

Effect = Literal["same", "replaced", "no effect"]


class Variable(NamedTuple):
    """One variable that torchrun or TorchX reads, or sets for workers."""

    name: str
    effect: Effect  # of its value where flowdist starts
    words: str  # the same in words, for the user


def _variables() -> Iterator[Variable]:
    text = files("flowdist.torchrun").joinpath("variables.md").read_text(encoding="utf-8")
    for row in (line for line in text.splitlines() if line.startswith("| `")):
        name, effect, words = row.strip("| ").split(" | ")
        yield Variable(name.strip("`"), msgspec.convert(effect, Effect), words)


VARIABLES = tuple(_variables())
IDLE = tuple(variable.name for variable in VARIABLES if variable.effect == "no effect")


def idle_variables(env: Mapping[str, str], prefix: str) -> list[str]:
    """Return the set variables that change nothing, as `NAME=value` in the table's order; empty or 0 is not set.

    `prefix` begins the names: `TORCHELASTIC_` does not include `TORCHX_`.
    """
    return [f"{name}={env[name]}" for name in IDLE if name.startswith(prefix) and env.get(name, "") not in ("", "0")]
