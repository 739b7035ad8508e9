"""Printing of the lines of logs: behind the name of their worker, as grep shows what it has found, or as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import click

from flowdist.errors import FlowdistError
from flowdist.text.printable import without_sequences, worker_line
from flowdist.text.streams import print_worker_line, raw_stream

MATCH, NAME, MARK = "\x1b[1;31m", "\x1b[35m", "\x1b[36m"  # the colours of GNU grep
RESET = "\x1b[0m"

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
    """Return one pattern that matches where any of these does."""
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
    """The search in the lines of one log, one after the other; colours in a line do not keep it from matching."""

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


class Origin(NamedTuple):
    """Where a line comes from."""

    worker: str  # trainer/0, or trainer/0.1
    attempt: int
    stream: str
    host: str  # the node of another host; empty: this host


class LinePrinter:
    """Prints lines of logs."""

    def __init__(
        self, mask: Callable[[str], str], search: Search | None, *, as_json: bool = False, no_prefix: bool = False
    ) -> None:
        self._mask, self._search, self._as_json, self._no_prefix = mask, search, as_json, no_prefix
        self._searches: dict[Origin, LineSearch] = {}
        self._last: Origin | None = None  # of the last line
        self.found = 0  # lines that match
        self.searched = 0

    def show(self, origin: Origin, line: str) -> None:
        """Print a line, or what the search makes of it."""
        line = self._mask(line)
        if self._search is None:
            if self._as_json:
                self._print_json(origin, line)
            else:
                print_worker_line(line if self._no_prefix else f"[{origin.worker}] {line}", sys.stdout)
            return
        if origin not in self._searches:
            self._searches[origin] = LineSearch(self._search)
        self.searched += 1
        for hit in self._searches[origin].feed(line):
            self.found += hit.matches
            if self._as_json:
                self._print_json(origin, hit.line, match=hit.matches)
            else:
                self._print_hit(self._search, origin, hit)
            self._last = origin

    def missing(self, text: str, node: str = "", help: str = "") -> None:
        """Print that logs could not be fetched: on stderr, and with JSON as an object among the lines, too."""
        click.echo(f"not fetched: {text}", err=True)
        if help:
            click.echo(f"help: {help}", err=True)
        if self._as_json:
            click.echo(json.dumps({"host": node or None, "not_fetched": text}))

    def _print_json(self, origin: Origin, line: str, **more: bool) -> None:
        text = line.encode(errors="surrogateescape").decode(errors="replace")
        content = {**origin._asdict(), "host": origin.host or None, "line": text, **more}
        sys.stdout.write(json.dumps(content) + "\n")
        sys.stdout.flush()

    def _print_hit(self, search: Search, origin: Origin, hit: Hit) -> None:
        """Print a line as grep does: `name:line` if it matches, `name-line` around a match, `--` between groups."""
        is_terminal = raw_stream(sys.stdout).isatty()
        has_context = search.before or search.after
        if has_context and self._last is not None and (hit.is_first or origin != self._last):
            self._write("--", MARK if is_terminal else "")
        name, mark = f"[{origin.worker}/attempt_{origin.attempt}]", ":" if hit.matches else "-"
        prefix = "" if self._no_prefix else name + mark
        if not is_terminal:
            print_worker_line(prefix + hit.line, sys.stdout)
            return
        text = worker_line(hit.line, colours=False)
        if hit.matches:
            text = search.pattern.sub(lambda found: f"{MATCH}{found[0]}{RESET}" if found[0] else "", text)
        self._write(f"{NAME}{name}{RESET}{MARK}{mark}{RESET}{text}" if prefix else text)

    def _write(self, line: str, colour: str = "") -> None:
        stream = raw_stream(sys.stdout)
        stream.write(f"{colour}{line}{RESET}\n" if colour else f"{line}\n")
        stream.flush()
