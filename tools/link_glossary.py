"""Link each word of the glossary where a page uses it for the first time.

    python -m tools.link_glossary [--check] [PAGE...]

Pages of the site outside the reference are mended in place; with `--check` the words without a link are listed instead,
each with its place, and the exit code is 1 if there is any. `tests/docs/test_glossary.py` does the same.

Only running text counts, in paragraphs and lists: no code, heading, table or text of another link. The plural of a word
is the word, and so are the forms of a verb, whose definition begins with "To". Words that the glossary names as common,
such as *run*, are left alone. A row of a table in the glossary becomes a section, so that links can lead to it.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tools.pages import DOCS, parts_of_index

GLOSSARY = "glossary.md"
WIDTH = 136  # of a line that was made longer by a link
COMMON = re.compile(r"^Common words, which pages do not link: (.*?)\.$", re.M | re.S)
FENCE = re.compile(r"\s*```")
NO_TEXT = re.compile(r"#|\||\s*$| {4,}\S.*\S {2,}|\t|<|\{")  # heading, table, nothing, code, HTML, directive
ITEM = re.compile(r"(\s*)([*-]|\d+\.) ")
MASKED = re.compile(r"`[^`]*`|!?\[[^\]]*\]\([^)]*\)|<[^>]+>", re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)]*)\)", re.S)


class Term(NamedTuple):
    """A word of the glossary with its other forms, and the section that defines it. Common words are not linked."""

    word: str
    forms: tuple[str, ...]
    anchor: str
    is_common: bool


class Block(NamedTuple):
    """Consecutive lines of a page; `is_text` is true for a paragraph or an item of a list."""

    first: int
    lines: list[str]
    is_text: bool


def sections_of_rows(glossary: str) -> str:
    """Return the glossary with each row of its tables as a section, but for the table of retired words.

    A row whose word has a section already is left out: two versions of the page were merged.
    """
    text, mark, retired = glossary.partition("## Retired words")
    there = set(re.findall(r"^### (.+)$", text, re.M))
    text = re.sub(r"^\| word \| meaning \|\n\|[-|]+\|\n", "", text, flags=re.M)
    text = re.sub(
        r"^\| ([^|]+) \| (.+) \|\n",
        lambda row: "" if row[1] in there else f"\n### {row[1]}\n\n{row[2]}\n\n",
        text,
        flags=re.M,
    )
    known = {form.lower(): term for term in terms_of(text) for form in term.forms}

    def cross(found: re.Match[str]) -> str:
        term = known.get(" ".join(found[1].lower().split()))
        return found[0] if term is None else f"[{found[1]}](#{term.anchor})"

    text = re.sub(r"(?<![*\w])\*([\w -]+)\*(?![*\w])", cross, text)
    return re.sub(r"\n{3,}", "\n\n", text) + mark + retired


def terms_of(glossary: str) -> list[Term]:
    """Return the terms of a glossary."""
    text = glossary.partition("## Retired words")[0]
    listed = COMMON.search(text)
    common = set() if listed is None else {" ".join(word.split()) for word in listed[1].split(",")}
    found = []
    for heading, meaning in re.findall(r"^### (.+)\n\n(.+)$", text, re.M):
        for word in heading.split(", "):
            forms = tuple(_forms(word, is_verb=meaning.startswith("To ")))
            found.append(Term(word, forms, anchor_of(heading), word in common))
    return found


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _forms(word: str, *, is_verb: bool) -> Iterator[str]:
    yield word
    yield f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith(("s", "x", "ch")) else f"{word}s"
    if is_verb:
        stem = word.removesuffix("e")
        yield from (f"{stem}ed", f"{stem}ing")


def missing_in(text: str, page: str, terms: Sequence[Term]) -> list[tuple[int, str]]:
    """Return line and word of each first use without a link to the glossary."""
    return [(line, word) for line, word, is_linked in _first_uses(text, page, terms) if not is_linked]


def linked(text: str, page: str, terms: Sequence[Term]) -> str:
    """Return a page in which each first use of a term is a link to the glossary.

    Args:
        text: The page.
        page: Its path below the folder of pages.
        terms: The terms.
    """
    parts = []
    left = [term for term in terms if not term.is_common]
    for block in blocks_of(text):
        old = "\n".join(block.lines)
        new = _linked_block(old, page, terms, left) if block.is_text else old
        parts += block.lines if new == old else _wrapped(new)
    return "\n".join(parts)


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, in their order; together they have all of its lines."""
    block: list[str] = []
    first, is_fenced, is_in_list = 1, False, False
    for number, line in enumerate(text.split("\n"), 1):
        is_fence = FENCE.match(line) is not None
        is_item = ITEM.match(line) is not None
        if line.strip():
            is_in_list = is_item or (is_in_list and line.startswith(" "))
        is_code = line.startswith("    ") and not block and not (is_in_list and not line.startswith(" " * 6))
        if is_fence or is_fenced or is_code or NO_TEXT.match(line):
            if block:
                yield Block(first, block, is_text=True)
                block = []
            yield Block(number, [line], is_text=False)
            is_fenced ^= is_fence
            continue
        if is_item and block:
            yield Block(first, block, is_text=True)
            block = []
        if not block:
            first = number
        block.append(line)
    if block:
        yield Block(first, block, is_text=True)


def _first_uses(text: str, page: str, terms: Sequence[Term]) -> Iterator[tuple[int, str, bool]]:
    left = [term for term in terms if not term.is_common]
    for block in blocks_of(text):
        old = "\n".join(block.lines) if block.is_text else ""
        while (use := _next_use(old, page, terms, left)) is not None:
            left.remove(use.term)
            yield block.first + old[: use.start].count("\n"), use.term.word, use.is_linked


class _Use(NamedTuple):
    term: Term
    start: int
    end: int
    is_linked: bool


def _next_use(text: str, page: str, terms: Sequence[Term], left: Sequence[Term]) -> _Use | None:
    """Return the first use of one of the terms that are left; a longer word hides those that it contains."""
    if not left:
        return None
    by_form = {form.lower(): term for term in reversed(terms) for form in term.forms}
    masked = MASKED.sub(lambda found: _mask(found, page, by_form), text)
    for found in _pattern(tuple(by_form)).finditer(masked):
        term = by_form[" ".join(found[0].lower().split())]
        if term in left:
            return _Use(term, *found.span(), masked[found.start() - 1 : found.start()] == "\x01")
    return None


@functools.cache
def _pattern(forms: tuple[str, ...]) -> re.Pattern[str]:
    words = [r"\s+".join(map(re.escape, form.split())) for form in sorted(forms, key=len, reverse=True)]
    words = [rf"{word}(?!\s+of\b)" if word.startswith("in\\s+") else word for word in words]  # "in place of torchrun"
    return re.compile(rf"(?<![\w/\x00-])({'|'.join(words)})(?![\w\x00]|-\w|/\w|\.\w)", re.I)


def _mask(found: re.Match[str], page: str, by_form: dict[str, Term]) -> str:
    """Return what takes the place of code or a link: nothing that matches, but for a link to the glossary.

    Of such a link the text stays, between marks that show that it is one.
    """
    whole = found[0]
    link = LINK.fullmatch(whole)
    if link is not None and not whole.startswith("!"):
        path, _, anchor = link[1].partition("#")
        words = " ".join(whole[1 : whole.index("]")].lower().split())
        if path == _to_glossary(page) and words in by_form and by_form[words].anchor == anchor:
            return "\x01" + whole[1 : whole.index("]")] + "\x02" * (len(whole) - whole.index("]"))
    return re.sub(r"[^\n]", "\x00", whole)


def _to_glossary(page: str) -> str:
    return os.path.relpath(GLOSSARY, Path(page).parent)


def _linked_block(text: str, page: str, terms: Sequence[Term], left: list[Term]) -> str:
    """Return a block with its first uses linked, and remove their terms from those that are left."""
    while (use := _next_use(text, page, terms, left)) is not None:
        left.remove(use.term)
        if not use.is_linked:
            link = f"[{text[use.start : use.end]}]({_to_glossary(page)}#{use.term.anchor})"
            text = text[: use.start] + link + text[use.end :]
    return text


def _wrapped(text: str) -> list[str]:
    """Return the lines of a block, filled anew if a link made one too long."""
    lines = text.split("\n")
    if max(map(len, lines)) <= WIDTH:
        return lines
    item = ITEM.match(lines[0])
    indent = " " * (item.end() if item else len(lines[0]) - len(lines[0].lstrip()))
    head = lines[0][: len(indent)]
    body = " ".join(line.strip() for line in [lines[0][len(indent) :], *lines[1:]])
    filled = textwrap.wrap(body, WIDTH - len(indent), break_long_words=False, break_on_hyphens=False)
    if any(re.match(r"([*+-]|\d+\.|#+|>|\|)\s", line) for line in filled[1:]):
        return lines  # a line would begin like an item of a list
    return [(indent if number else head) + line for number, line in enumerate(filled)]


def pages_outside_the_reference() -> list[str]:
    """Return the pages whose words are linked."""
    return [page for part, names in parts_of_index().items() if part != "Reference" for page in names]


def main(words: list[str]) -> int:
    """Mend or check the named pages, by default all outside the reference."""
    is_check = "--check" in words
    glossary = (DOCS / GLOSSARY).read_text("utf-8")
    mended, count = sections_of_rows(glossary), 0
    if mended != glossary:
        print(f"docs/{GLOSSARY}: a table has words that need a section each")
        count += 1
        if not is_check:
            (DOCS / GLOSSARY).write_text(mended, "utf-8")
    terms = terms_of(mended)
    named = [os.path.relpath(Path(word).resolve(), DOCS) for word in words if word != "--check"]
    for page in named or pages_outside_the_reference():
        text = (DOCS / page).read_text("utf-8")
        for line, word in missing_in(text, page, terms):
            print(f"docs/{page}:{line}: {word!r} is used for the first time, without a link to the glossary")
            count += 1
        if not is_check:
            (DOCS / page).write_text(linked(text, page, terms), "utf-8")
    return 1 if is_check and count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
