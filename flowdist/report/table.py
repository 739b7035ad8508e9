"""Table as text, in a module without other imports."""

from __future__ import annotations


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table with left-aligned columns, indented by two spaces."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
