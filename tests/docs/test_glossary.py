"""Each word of the glossary is a link where a page of the site uses it for the first time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from glossary_links import link_first_uses, terms_of

from tools.pages import DOCS

GLOSSARY = (DOCS / "glossary.md").read_text()
SMALL = """
Words
=====

Common words, which pages do not link: run,
store.

Things
------

role graph
^^^^^^^^^^

A frozen value.

role
^^^^

A group.

drain
^^^^^

To leave a role.

warm, cold
^^^^^^^^^^

A forked one.

in place
^^^^^^^^

Without an end.

run
^^^

One job.

Retired words
-------------

No more words.
"""


def tree(text: str) -> nodes.document:
    return publish_doctree(text, settings_overrides={"doctitle_xform": False})


def linked(text: str) -> str:
    """Return the words of a page, those that are links as `[word](anchor)`; a second time changes nothing."""
    page, terms = tree(text), terms_of(tree(SMALL))
    link_first_uses(page, terms, lambda term: f"g#{term.anchor}")
    shown = _shown(page)
    link_first_uses(page, terms, lambda term: f"g#{term.anchor}")
    assert _shown(page) == shown
    return shown


def _shown(page: nodes.document) -> str:
    parts = []
    for text in page.findall(nodes.Text):
        is_link = isinstance(text.parent, nodes.reference)
        parts.append(f"[{text.astext()}]({text.parent['refuri'].removeprefix('g#')})" if is_link else text.astext())
    return "".join(parts)


def test_terms_have_their_forms_and_the_anchors_of_their_sections() -> None:
    terms = {term.word: term for term in terms_of(tree(SMALL))}
    assert list(terms) == ["role graph", "role", "drain", "warm", "cold", "in place", "run"]
    assert terms["role"].forms == ("role", "roles") and terms["drain"].forms == (
        "drain",
        "drains",
        "drained",
        "draining",
    )
    assert terms["warm"].anchor == terms["cold"].anchor == "warm-cold"
    assert [term.word for term in terms.values() if term.is_common] == ["run"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A role. Another role.", "A [role](role). Another role."),
        ("Roles are grouped.", "[Roles](role) are grouped."),
        ("A role graph of a role graph.", "A [role graph](role-graph) of a role graph."),
        ("A role graph has a role.", "A [role graph](role-graph) has a [role](role)."),
        ("A role\ngraph.", "A [role\ngraph](role-graph)."),
        ("It drained, is draining.", "It [drained](drain), is draining."),
        ("Warm and cold.", "[Warm](warm-cold) and [cold](warm-cold)."),
        ("It stays in place.", "It stays [in place](in-place)."),
        ("This in place of that.", "This in place of that."),
        ("They run and store.", "They run and store."),
        ("A **strong role**.", "A strong [role](role)."),
        ("One.\n\n* A role.\n* Drains.", "One.A [role](role).[Drains](drain)."),
        ("A `role <g#role>`__, a role.", "A [role](role), a role."),
        ("A `role <x>`__, a role.", "A [role](x), a [role](role)."),
        ("``role``, role-kill, role.py, my/role.", None),
        ("The role\n========\n\n::\n\n    role\n\n===== ====\nrole  role\n===== ====\n", None),
    ],
)
def test_words_are_linked_in_running_text_alone(text: str, shown: str | None) -> None:
    assert linked(text) == (_shown(tree(text)) if shown is None else shown)


def test_the_glossary_has_a_section_for_each_word_and_few_common_ones() -> None:
    words = [word for title in re.findall(r"^### (.+)$", GLOSSARY, re.M) for word in title.split(", ")]
    listed = re.search(r"^Common words, which pages do not link: (.*?)\.$", GLOSSARY, re.M | re.S)
    assert listed is not None
    common = {" ".join(word.split()) for word in listed[1].split(",")}
    assert len(words) > 80 and len(set(words)) == len(words)
    assert common < set(words) and len(common) < len(words) / 5


def test_a_site_has_the_links(tmp_path: Path) -> None:
    """Sphinx builds two pages, one of them in a folder, with the extension of the site and nothing else of it."""
    application = pytest.importorskip("sphinx.application", reason="Sphinx is not installed: `make docs` installs it")
    (tmp_path / "in").mkdir()
    (tmp_path / "conf.py").write_text("extensions = ['glossary_links']\n")
    (tmp_path / "glossary.rst").write_text(SMALL)
    (tmp_path / "index.rst").write_text("Index\n=====\n\nA role.\n\n.. toctree::\n\n   in/page\n   glossary\n")
    (tmp_path / "in/page.rst").write_text("Page\n====\n\nEach role is a role.\n")
    site = tmp_path / "site"
    application.Sphinx(tmp_path, tmp_path, site, tmp_path / "trees", "html", status=None).build()
    link = '<a class="reference internal" href="{}glossary.html#role">role</a>'
    assert f"<p>A {link.format('')}.</p>" in (site / "index.html").read_text()
    assert f"<p>Each {link.format('../')} is a role.</p>" in (site / "in/page.html").read_text()
    assert "<p>To leave a role.</p>" in (site / "glossary.html").read_text()
