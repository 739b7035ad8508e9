"""Quotation marks around values: a command line that was written for a shell may still have them."""

from __future__ import annotations


def unquoted(text: str) -> str:
    """Return the text without the blanks around it, and without one pair of equal quotation marks around the rest."""
    word = text.strip()
    return word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word
