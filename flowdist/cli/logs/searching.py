"""Search for a pattern in the lines of logs, with lines around it, as grep does."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flowdist.errors import FlowdistError
from flowdist.text.printable import without_sequences

# What `re` says of a pattern, by its beginning, and the same in words.
_ERRORS = (
    ("missing ), unterminated subpattern", "the ( has no )"),
    ("unbalanced parenthesis", "the ) has no ("),
    ("unterminated character set", "the [ has no ]"),
    ("nothing to repeat", "there is nothing before it to repeat"),
    ("multiple repeat", "it repeats what is repeated already"),
    ("bad character range", "the range in [ ] runs backwards"),
    ("min repeat greater than max repeat", "the least number in { } is greater than the greatest"),
    ("bad escape (end of pattern)", "nothing follows the \\"),
    ("bad escape", "the \\ before this character means nothing"),
    ("look-behind requires fixed-width pattern", "(?<=...) needs a pattern of one length"),
    ("invalid group reference", "it refers to a group that is not there"),
    ("cannot refer to an open group", "it refers to the group that it is in"),
    ("unknown extension", "there is no such (?...)"),
    ("global flags not at the start of the expression", "flags such as (?i) have to come first"),
)


class Search(NamedTuple):
    """A pattern to search for, and how many lines before and after a match are wanted."""

    pattern: re.Pattern[str]
    before: int = 0
    after: int = 0


class Hit(NamedTuple):
    """A line that is printed: one that matches, or one around it. `is_first`: it does not follow the last one."""

    line: str
    matches: bool
    is_first: bool


def compiled(patterns: Sequence[str], *, is_text: bool, ignore_case: bool) -> re.Pattern[str]:
    """Return one pattern that matches where any of these does.

    Args:
        patterns: Regular expressions of Python.
        is_text: Each of them is a text to search for as it is.
        ignore_case: Whether upper and lower case are the same.

    Raises:
        FlowdistError: One of them is no regular expression.
    """
    flags = re.IGNORECASE if ignore_case else 0
    if is_text:
        return re.compile("|".join(map(re.escape, patterns)), flags)
    for pattern in patterns:
        try:
            re.compile(pattern, flags)
        except (re.error, OverflowError, RecursionError) as error:
            raise _in_words(pattern, error) from None
    if len(patterns) == 1:
        return re.compile(patterns[0], flags)
    try:
        return re.compile("|".join(f"(?:{pattern})" for pattern in patterns), flags)
    except re.error:  # both have a group of one name, or flags of their own
        raise FlowdistError("these patterns cannot be searched together", help="write one --grep 'A|B'") from None


def _in_words(pattern: str, error: Exception) -> FlowdistError:
    """Return the error of a pattern in words."""
    text = str(getattr(error, "msg", error)) or "it is too deep"
    why = next((words for begin, words in _ERRORS if text.startswith(begin)), text)
    place = getattr(error, "pos", None)
    where = f" at character {place + 1}" if place is not None else ""
    rest = pattern[place:][:20] if place is not None else ""
    quoted = f" ({rest!r})" if rest and rest != pattern else ""
    help = "write \\ before a character that stands for itself, or -F to search for the text as it is"
    return FlowdistError(f"--grep {pattern!r} is no regular expression: {why}{where}{quoted}", help=help)


class LineSearch:
    """The search in the lines of one log, which `feed` gets one after the other.

    Colours and other control sequences in a line do not keep it from matching.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        self._before: deque[str] = deque(maxlen=search.before)
        self._after = 0  # lines after the last match that are still wanted
        self._is_first = True  # the line before the next one was not printed

    def feed(self, line: str) -> Iterator[Hit]:
        """Yield what is to be printed now: nothing, a line after a match, or a match with the lines before it."""
        if self._search.pattern.search(without_sequences(line)) is not None:
            while self._before:
                yield self._hit(self._before.popleft(), matches=False)
            self._after = self._search.after
            yield self._hit(line, matches=True)
        elif self._after:
            self._after -= 1
            yield self._hit(line, matches=False)
        else:
            self._is_first |= len(self._before) == self._search.before  # a line is passed over
            self._before.append(line)

    def _hit(self, line: str, *, matches: bool) -> Hit:
        is_first, self._is_first = self._is_first, False
        return Hit(line, matches, is_first)
