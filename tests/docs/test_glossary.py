"""Each word of the glossary is a link where a page uses it for the first time, and the tool that writes the links."""

from __future__ import annotations

import re

import pytest

from tools.link_glossary import anchor_of, linked, missing_in, pages_outside_the_reference, sections_of_rows, terms_of
from tools.pages import DOCS

GLOSSARY = (DOCS / "glossary.md").read_text()
TERMS = terms_of(GLOSSARY)
SMALL = """# Words

Common words, which pages do not link: run,
store.

## Things

### role graph

A frozen value.

### role

A group.

### drain

To leave a [role](#role).

### warm, cold

A forked one.

### in place

Without an end.

### run

One job.

## Retired words

| retired | now |
|---|---|
| `park` | drain |
"""


def test_the_glossary_has_a_section_for_each_word_and_marks_few_as_common() -> None:
    assert sections_of_rows(GLOSSARY) == GLOSSARY
    assert len(TERMS) > 80 and len({term.word for term in TERMS}) == len(TERMS)
    common = [term.word for term in TERMS if term.is_common]
    assert 0 < len(common) < len(TERMS) / 5


def test_each_link_to_the_glossary_leads_to_a_section_of_it() -> None:
    anchors = {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", GLOSSARY, re.M)}
    wrong = [
        f"{page.relative_to(DOCS)}: {anchor}"
        for page in DOCS.rglob("*.md")
        for anchor in re.findall(r"glossary\.md#([\w-]+)", page.read_text())
        if anchor not in anchors
    ]
    assert wrong == []


@pytest.mark.parametrize("page", pages_outside_the_reference())
def test_each_word_is_a_link_at_its_first_use_on_the_page(page: str) -> None:
    missing = missing_in((DOCS / page).read_text(), page, TERMS)
    assert not missing, f"python -m tools.link_glossary docs/{page}"


def test_every_common_word_that_is_listed_is_a_word_of_the_glossary() -> None:
    listed = re.search(r"^Common words, which pages do not link: (.*?)\.$", GLOSSARY, re.M | re.S)
    assert listed is not None
    words = {word.strip() for word in listed[1].split(",")}
    assert words == {term.word for term in TERMS if term.is_common}


def mended(text: str, page: str = "page.md") -> str:
    """Return the page with links; a second time changes nothing, and nothing is missing then."""
    terms = terms_of(SMALL)
    new = linked(text, page, terms)
    assert linked(new, page, terms) == new and missing_in(new, page, terms) == []
    return new


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("A role. Another role.", "A [role](glossary.md#role). Another role."),
        ("Roles are grouped.", "[Roles](glossary.md#role) are grouped."),
        ("A role graph of a role graph.", "A [role graph](glossary.md#role-graph) of a role graph."),
        ("A role graph has a role.", "A [role graph](glossary.md#role-graph) has a [role](glossary.md#role)."),
        ("A role\ngraph.", "A [role\ngraph](glossary.md#role-graph)."),
        ("It drained, is draining.", "It [drained](glossary.md#drain), is draining."),
        ("Warm and cold.", "[Warm](glossary.md#warm-cold) and [cold](glossary.md#warm-cold)."),
        ("It stays in place.", "It stays [in place](glossary.md#in-place)."),
        ("This in place of that.", "This in place of that."),
        ("They run and store.", "They run and store."),
        ("Use `role`, [the role](x.md), role-kill, role.py, my/role.", None),
        ("# The role\n\n| role |\n|---|\n| a role |\n\n```\nrole\n```\n\n    flowdist role\n", None),
        ("* A role.\n  The role\n* drains", "* A [role](glossary.md#role).\n  The role\n* [drains](glossary.md#drain)"),
        ("A [role](glossary.md#role).", None),
        ("A role, then [role](glossary.md#role).", "A [role](glossary.md#role), then [role](glossary.md#role)."),
        ("`x`\n\nrole", "`x`\n\n[role](glossary.md#role)"),
    ],
)
def test_words_are_linked_in_running_text_alone(text: str, new: str | None) -> None:
    assert mended(text) == (text if new is None else new)


def test_a_page_in_a_folder_links_to_the_folder_above() -> None:
    assert mended("A role.", "tutorial/1.md") == "A [role](../glossary.md#role)."


def test_a_line_that_a_link_makes_too_long_is_filled_anew() -> None:
    text = "* " + "word " * 24 + "role and more"
    lines = mended(text).split("\n")
    assert len(lines) == 2 and lines[0].startswith("* word") and lines[1].startswith("  ")


def test_a_missing_link_is_named_with_its_line() -> None:
    assert missing_in("# Page\n\nOne\nrole.\n", "page.md", terms_of(SMALL)) == [(4, "role")]


def test_a_row_of_a_word_that_has_a_section_is_left_out() -> None:
    text = "### role\n\nA group.\n\n| role | An older text. |\n| node | A machine. |\n\n## Retired words\n"
    assert sections_of_rows(text) == "### role\n\nA group.\n\n### node\n\nA machine.\n\n## Retired words\n"


def test_a_row_of_a_table_becomes_a_section_with_links_to_others() -> None:
    rows = "| word | meaning |\n|---|---|\n| role | A group of *replicas*. |\n| replica | One. |\n"
    text = f"## A\n\n{rows}\n## Retired words\n\n| a | b |\n"
    new = sections_of_rows(text)
    assert "### role\n\nA group of [replicas](#replica).\n\n### replica\n\nOne.\n" in new
    assert new.endswith("## Retired words\n\n| a | b |\n") and sections_of_rows(new) == new
