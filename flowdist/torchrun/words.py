"""Words of a torchrun command line that workers get: macros are translated, and nothing else becomes one."""

from __future__ import annotations

import re


def comma_separated(text: str) -> tuple[str, ...]:
    """Return the texts of a filter, split at commas as torchrun does: two commas stand for a comma in a text."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.strip().replace("\0", ",") for part in parts if part.strip())


def as_it_is(word: str) -> str:
    """Return a word with every `${` escaped, so that flowdist expands no macro in it."""
    return word.replace("${", "${$}{")


def for_worker(word: str) -> str:
    """Translate torchrun's macros in an argument to flowdist's, and escape everything else that looks like a macro.

    `$local_rank` and `${local_rank}` become flowdist's macro for the worker's local rank, `$$` becomes a dollar.
    """
    marked = re.sub(r"\$(\$|local_rank(?![A-Za-z0-9_])|\{local_rank\})", lambda m: "$" if m[1] == "$" else "\0", word)
    return as_it_is(marked).replace("\0", "${local_rank}")
