"""What every page of the site keeps: it has a place, it is short unless it is reference, and its words are linked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pages import DOCS, WORDS_MAX, pages, parts_of_index, words_of

OTHERS = [page for part, names in parts_of_index().items() if part != "Reference" for page in names]


def test_the_index_has_four_parts_besides_those_for_comers_and_each_page_once() -> None:
    parts = parts_of_index()
    assert list(parts) == ["Tutorials", "Coming from", "How-to guides", "Reference", "Explanation"]
    listed = [page for names in parts.values() for page in names]
    assert len(listed) == len(set(listed))
    assert set(listed) == {page for page in pages() if page != "index.md"}


@pytest.mark.parametrize("page", OTHERS)
def test_a_page_outside_the_reference_is_no_longer_than_a_reader_reads_at_once(page: str) -> None:
    """Words of prose, lists and tables count; blocks of code do not."""
    assert words_of((DOCS / page).read_text()) <= WORDS_MAX


def test_words_are_counted_without_code() -> None:
    text = "# Two words\n\n| a | b |\n|--|--|\n\n```python\nx = 1\n```\n\n    flowdist run\n\n[One](a.md) of `three`.\n"
    assert words_of(text) == 7
    assert words_of("* item\n\n  more of it\n") == 4


def test_files_of_the_site_are_those_of_the_index(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("```{toctree}\n:caption: One\n:maxdepth: 1\n\na\nb/c\n```\n")
    assert parts_of_index(tmp_path) == {"One": ["a.md", "b/c.md"]}
