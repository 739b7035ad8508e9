"""Characters that a terminal obeys or that deceive its reader, for property tests, and what may reach a terminal."""

from __future__ import annotations

import re

from hypothesis import strategies as st

SEQUENCES = (
    "\x1b[2J",
    "\x1b[31m",
    "\x1b[0m",
    "\x1b[1;31",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x1b\\",
    "\x1b]8;;http://elsewhere",
    "\x1bPq#0\x1b\\",
    "\x1bc",
    "\x1b(0",
    "\x1b[>4;2m",
    "\x9b2J",
    "\x9d0;title\x9c",
    "\x90",
    "\x1b",
    "[",
    "]",
    "2J",
    "m",
    "\r",
    "\b",
    "\x00",
    "\x07",
    "\x0b",
    "\x7f",
    "\x85",
    "\u202e",
    "\u2066",
    "\u200b",
    "\u2028",
    "\ufeff",
    "\U000e0041",
    "a",
    "word ",
    "é",
)
nasty_text = st.lists(st.sampled_from(SEQUENCES) | st.characters(exclude_characters="\n"), max_size=12).map("".join)

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_UNSEEN = re.compile("[\u200b-\u200f\ufeff\U000e0000-\U000e0fff]")


def obeyed(text: str, *, colours: bool = True, unseen: bool = False) -> list[str]:
    """Return the characters of a text that no terminal may get, colours apart; with `unseen` zero-width ones too."""
    rest = _COLOUR.sub("", text) if colours else text
    return _OBEYED.findall(rest) + (_UNSEEN.findall(rest) if unseen else [])
