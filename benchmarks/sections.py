"""The part of docs/benchmarks.md that a benchmark writes: between two marks."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs/benchmarks.md"


def write_section(name: str, text: str) -> None:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = DOCS.read_text().partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{DOCS} has lost its marks: {begin.strip()} and {end}")
    DOCS.write_text(f"{head}{begin}{text}\n{end}{tail}")
