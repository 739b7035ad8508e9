"""The part of evidence/benchmarks.md, or of another page, that a benchmark writes: between two marks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_section(name: str, text: str, page: str = "evidence/benchmarks.md") -> None:
    path = ROOT / page
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, _, rest = path.read_text().partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise SystemExit(f"{page} has lost its marks: {begin.strip()} and {end}")
    path.write_text(f"{head}{begin}{text}\n{end}{tail}")
