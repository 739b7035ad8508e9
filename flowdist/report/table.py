"""Text tables for the reports, in a module that imports little."""

from __future__ import annotations

from flowdist.text.printable import one_line


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a text table with at least one row: columns two spaces apart, indented by two spaces."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
