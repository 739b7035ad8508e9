"""Meaning of each problem code, read from `errors.md`, which is part of the package.

That file is the only source. `docs/errors.md` is a copy of it, made by `make format`.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from flowdist.dsl.problems.problem import did_you_mean
from flowdist.errors import FlowdistError

# Of difflib. All codes begin with FD and have three digits, so that two with one digit in common have 0.6.
CODE_LIKENESS_MIN = 0.75
_HEADING = re.compile(r"^### (FD\d{3}): (.+)$", re.MULTILINE)


class Section(NamedTuple):
    """Section of `errors.md` on one problem code. `text` is Markdown, of one or more paragraphs."""

    code: str
    title: str
    text: str


def sections() -> dict[str, Section]:
    """Read `errors.md` and return its sections by their codes, in the order of the page."""
    parts = _HEADING.split(files("flowdist.dsl.problems").joinpath("errors.md").read_text(encoding="utf-8"))
    found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return {code: Section(code, title, text.strip()) for code, title, text in found}


def section(code: str) -> Section:
    """Return the section on a code such as `FD105`, in upper or lower case; FlowdistError if there is no such code."""
    known = sections()
    found = known.get(code.upper())
    if found is None:
        listed = f"docs/errors.md lists all codes, from {min(known)} to {max(known)}"
        help = did_you_mean(code.upper(), known, otherwise=listed, likeness_min=CODE_LIKENESS_MIN)
        raise FlowdistError(f"there is no code {code!r}", help=help)
    return found
