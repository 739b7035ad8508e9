"""Draw docs/architecture.svg from the import contract of pyproject.toml and the docstrings of the folders.

    python tools/draw_architecture.py [--check]

A row is a layer: it may import the rows below it, and nothing above or beside it. `--check` writes nothing, and ends
with exit code 1 if the picture is not what it would write.

Needs the standard library alone.
"""

from __future__ import annotations

import ast
import sys
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs/architecture.svg"
WIDTH, MARGIN, GAP, LINE, TITLE = 1080, 16, 10, 15, 18  # pixels
CHARACTER = 6.1  # pixels, of the small text
STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#24292f}"
    ".name{font-size:14px;font-weight:600}.folders{font-family:ui-monospace,monospace;font-size:11px;fill:#57606a}"
    "rect{fill:#f6f8fa;stroke:#8c959f}.decides{fill:#ddf4ff;stroke:#0969da}"
)


def layers() -> list[list[str]]:
    """Return the layers of the package from the top, each a list of folders, as the first import contract has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return [[part.strip() for part in layer.split("|")] for layer in contracts[0]["layers"]]


def summary_of(name: str) -> str:
    """Return the first sentence of the docstring of a folder or module."""
    path = ROOT / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").replace("`", "")


def folders_of(name: str) -> list[str]:
    """Return the names of the folders directly inside a folder."""
    path = ROOT / name.replace(".", "/")
    return sorted(each.parent.name for each in path.glob("*/__init__.py")) if path.is_dir() else []


def box(name: str, width: int) -> tuple[list[tuple[str, str]], int]:
    """Return the lines of one box, each with its class, and the height of the box in pixels."""
    characters = int((width - 2 * GAP) / CHARACTER)
    lines = [("name", name.removeprefix("flowdist."))]
    lines += [("", line) for line in textwrap.wrap(summary_of(name), characters)]
    lines += [("folders", line) for line in textwrap.wrap("  ".join(folders_of(name)), int(characters * 0.9))]
    return lines, TITLE + LINE * (len(lines) - 1) + 2 * GAP


def picture() -> str:
    """Return the picture as SVG."""
    parts: list[str] = []
    y = MARGIN
    for layer in layers():
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) // len(layer)
        boxes = [box(name, width) for name in layer]
        height = max(height for _, height in boxes)
        for n, (name, (lines, _)) in enumerate(zip(layer, boxes, strict=True)):
            x = MARGIN + n * (width + GAP)
            kind = ' class="decides"' if name == "flowdist.control" else ""
            parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"{kind}/>')
            for row, (style, line) in enumerate(lines):
                at = y + GAP + TITLE - 4 + row * LINE
                parts.append(f'<text x="{x + GAP}" y="{at}" class="{style}">{escape(line)}</text>')
        y += height + GAP
    title = "The folders of flowdist: each row may import the rows below it, and nothing above or beside it"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{title}">'
    return "\n".join([head, f"<title>{title}</title>", f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def main() -> int:
    drawn = picture()
    if "--check" in sys.argv[1:]:
        if PICTURE.exists() and PICTURE.read_text() == drawn:
            return 0
        print(f"{PICTURE.relative_to(ROOT)} is not up to date: run python tools/draw_architecture.py")
        return 1
    PICTURE.write_text(drawn)
    return 0


if __name__ == "__main__":
    sys.exit(main())
