"""All rows of the table, and the page of the evidence that has them."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos import disks, journals, kills, limits, stops, workers
from tests.chaos.row import Row

ROWS: list[Row] = [*stops.ROWS, *kills.ROWS, *disks.ROWS, *limits.ROWS, *workers.ROWS, *journals.ROWS]

PAGE = """# Crash safety: what happens when the machine misbehaves

Each row of the table is a fault that is played on real processes, what flowdist promises for it, and what was
observed when the table was made. `make chaos` plays all rows and writes this page; `make test` plays those with a
star. The job of the table is a parameter server and two trainers, whose result is a hash over all of their steps:
it is wrong if a step is lost or done twice. Each trainer holds a lock while it runs, which shows whether two
attempts of a rank ever run at once.

`python -m tests.chaos --row NAME` plays one row.

| row | fault | promise | observed |
|---|---|---|---|
"""


def markdown(observed: Mapping[str, str]) -> str:
    """Return the page, with what was observed by the names of the rows."""
    lines = [
        f"| {row.name}{star(row)} | {row.fault} | {row.promise} | {_cell(observed.get(row.name, ''))} |" for row in ROWS
    ]
    return PAGE + "\n".join(lines) + "\n"


def observed_on(page: str) -> dict[str, str]:
    """Return what was observed by the names of the rows, as a page of `markdown` has it."""
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    found = {each[0].removesuffix(" *"): each[-1].replace("\\|", "|") for each in cells if len(each) == 4}
    return {row.name: found[row.name] for row in ROWS if row.name in found}


def star(row: Row) -> str:
    """Return what marks the name of a quick row."""
    return " *" if row.is_quick else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
