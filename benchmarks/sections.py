"""The part of docs/benchmarks.md, or of another page, that a benchmark writes: between two marks."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs/benchmarks.md"


def write_section(name: str, text: str, page: Path = DOCS) -> None:
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = page.read_text().partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has lost its marks: {begin.strip()} and {end}")
    page.write_text(f"{head}{begin}{text}\n{end}{tail}")
