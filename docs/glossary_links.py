"""Link each word of the glossary where a page of the site uses it for the first time: an extension of Sphinx.

Only running text counts, in paragraphs and lists: no code, heading, table, generated signature or text of another link.
The plural of a word is the word, and so are the forms of a verb, whose definition begins with "To". Words that the
glossary names as common, such as *run*, are left alone. A link that a page has itself counts as the first use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

GLOSSARY = "glossary"
COMMON = "Common words, which pages do not link:"
DEPTH_OF_WORDS = 3  # a word is a section of a section of the page
NO_TEXT = {"table", "desc"}  # what has paragraphs that no reader reads in their order
NO_WORDS = {"literal", "reference", "download_reference", "math", "image"}


class Term(NamedTuple):
    """A word of the glossary with its other forms, and the section that defines it. Common words are not linked."""

    word: str
    forms: tuple[str, ...]
    anchor: str
    is_common: bool


class Use(NamedTuple):
    """Where a text uses a term."""

    start: int
    end: int
    term: Term


def terms_of(glossary: nodes.document) -> list[Term]:
    """Return the terms of a glossary; a section whose title is `warm, cold` defines two."""
    texts = (paragraph.astext() for paragraph in glossary.findall(nodes.paragraph))
    listed = next((text for text in texts if text.startswith(COMMON)), "")
    common = {" ".join(word.split()) for word in listed.removeprefix(COMMON).removesuffix(".").split(",")}
    found = []
    for section in glossary.findall(nodes.section):
        if sum(isinstance(each, nodes.section) for each in _and_parents(section)) != DEPTH_OF_WORDS:
            continue
        title, meaning = section[0].astext(), section[1].astext()
        for word in title.split(", "):
            forms = tuple(_forms(word, is_verb=meaning.startswith("To ")))
            found.append(Term(word, forms, section["ids"][0], word in common))
    return found


def _forms(word: str, *, is_verb: bool) -> Iterator[str]:
    yield word
    yield f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"
    if is_verb:
        stem = word.removesuffix("e")
        yield from (f"{stem}ed", f"{stem}ing")


def link_first_uses(page: nodes.document, terms: Sequence[Term], uri_of: Callable[[Term], str]) -> None:
    """Make each first use of a term on the page a link.

    Args:
        page: The page, whose own links are resolved.
        terms: The terms.
        uri_of: Gives the address of a term's section.
    """
    by_form = {form.lower(): term for term in reversed(terms) for form in term.forms}
    pattern = _pattern(by_form)
    left = {term for term in terms if not term.is_common}
    for text in list(_running_texts(page)):
        around = [each for each in _and_parents(text) if each.tagname in NO_WORDS]
        if not around:
            _link(text, _first_uses(text.astext(), pattern, by_form, left), uri_of)
            continue
        term = by_form.get(_plain(text.astext()))
        if term is not None and around[0].get("refuri") == uri_of(term):
            left.discard(term)


def _running_texts(page: nodes.document) -> Iterator[nodes.Text]:
    for paragraph in page.findall(nodes.paragraph):
        if not any(each.tagname in NO_TEXT for each in _and_parents(paragraph)):
            yield from paragraph.findall(nodes.Text)


def _and_parents(node: nodes.Node | None) -> Iterator[nodes.Node]:
    while node is not None:
        yield node
        node = node.parent


def _pattern(by_form: dict[str, Term]) -> re.Pattern[str]:
    """Return the pattern of a use of any term; a longer word hides those that it contains."""
    words = [r"\s+".join(map(re.escape, form.split())) for form in sorted(by_form, key=len, reverse=True)]
    words = [rf"{word}(?!\s+of\b)" if word.startswith("in\\s+") else word for word in words]  # "in place of torchrun"
    return re.compile(rf"(?<![\w/-])({'|'.join(words)})(?!\w|-\w|/\w|\.\w)", re.I)


def _plain(words: str) -> str:
    return " ".join(words.lower().split())


def _first_uses(text: str, pattern: re.Pattern[str], by_form: dict[str, Term], left: set[Term]) -> Iterator[Use]:
    """Yield the uses of terms that are left, and remove these."""
    for found in pattern.finditer(text):
        term = by_form[_plain(found[0])]
        if term in left:
            left.remove(term)
            yield Use(*found.span(), term)


def _link(text: nodes.Text, uses: Iterator[Use], uri_of: Callable[[Term], str]) -> None:
    """Put links into a text, in place of the words that are used."""
    whole, parts, done = text.astext(), [], 0
    for use in uses:
        word = whole[use.start : use.end]
        parts += [
            nodes.Text(whole[done : use.start]),
            nodes.reference("", word, internal=True, refuri=uri_of(use.term)),
        ]
        done = use.end
    if parts:
        text.parent.replace(text, [*parts, nodes.Text(whole[done:])])


def _on_resolved(app: Sphinx, page: nodes.document, name: str) -> None:
    if name != GLOSSARY:
        there = app.builder.get_relative_uri(name, GLOSSARY)
        link_first_uses(page, terms_of(app.env.get_doctree(GLOSSARY)), lambda term: f"{there}#{term.anchor}")


def _outdated(app: Sphinx, env: object, added: set[str], changed: set[str], removed: set[str]) -> set[str]:
    """Return the pages that are made anew: all of them if the glossary has changed."""
    return app.env.found_docs if GLOSSARY in changed else set()


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx of the extension."""
    app.connect("doctree-resolved", _on_resolved)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
