"""Completion of a command line of torchrun that a user is still typing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flowdist.torchrun.options import OPTIONS, Option

BY_SPELLING = {name: option for option in OPTIONS for name in option.spellings()}


def completions(words: Sequence[str], incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield what the word `incomplete` behind `words` may become, with help; none: it may be a file."""
    has_script, option = _place_after(words)
    if option is not None:
        yield from ((choice, "") for choice in option.choices if choice.startswith(incomplete))
    elif not has_script and incomplete.startswith("-"):
        names = ((each.names[-1], each) for each in OPTIONS)
        yield from ((name, each.words) for name, each in names if name.startswith(incomplete.replace("_", "-")))


def _place_after(words: Sequence[str]) -> tuple[bool, Option | None]:
    """Return whether the words have the script already, and the option whose value they still lack."""
    lacking: Option | None = None
    for word in words:
        if lacking is not None:
            lacking = None
        elif not word.startswith("-") or word == "--":
            return True, None
        elif (option := BY_SPELLING.get(word)) is not None and not option.flag:
            lacking = option
    return False, lacking
