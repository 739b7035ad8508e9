"""The pages of the site, as the index lists them, and their lengths."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
WORDS_MAX = 1500  # of a page outside the reference: some six minutes of reading


def pages(docs: Path = DOCS) -> list[str]:
    """Return the pages, as paths below the folder."""
    return sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def parts_of_index(docs: Path = DOCS) -> dict[str, list[str]]:
    """Return the parts of the index by their captions, each with its pages."""
    parts = {}
    for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", (docs / "index.md").read_text("utf-8"), re.M | re.S):
        head, _, body = block.partition("\n\n")
        caption = re.search(r"^:caption: (.*)$", head, re.M)
        assert caption is not None, block
        parts[caption[1]] = [f"{line}.md" for line in body.split()]
    return parts


def words_of(text: str) -> int:
    """Return the number of words of a page without its blocks of code; what has no letter or digit is no word."""
    text = re.sub(r"^(\s*)```.*?^\1```\s*?$", "", text, flags=re.M | re.S)
    text = re.sub(r"(?m)(?:^|(?<=\n))(?: {4,}|\t)\S.*$", "", text)
    return sum(bool(re.search(r"\w", word)) for word in text.split())
