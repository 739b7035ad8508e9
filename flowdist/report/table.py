"""Rows as text, for whoever needs nothing else of a report: no graph is analysed for it."""

from __future__ import annotations


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Left-aligned columns under their headings."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
