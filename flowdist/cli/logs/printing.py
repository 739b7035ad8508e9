"""Printing of the lines of logs: behind the name of their worker, as those that a search has found, or as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import NamedTuple

import click

from flowdist.cli.logs.searching import Hit, LineSearch, Search
from flowdist.text.printable import worker_line
from flowdist.text.streams import print_worker_line, raw_stream

MATCH, NAME, MARK = "\x1b[1;31m", "\x1b[35m", "\x1b[36m"  # the colours of GNU grep
RESET = "\x1b[0m"


class Origin(NamedTuple):
    """Where a line comes from."""

    worker: str  # trainer/0, or trainer/0.1
    attempt: int
    stream: str
    host: str  # the node of another host; empty: this host


class LinePrinter:
    """Prints lines of logs.

    Args:
        mask: Hides the values of secrets.
        search: What is searched for; None: all lines are printed.
        as_json: Whether each line is a JSON object.
        no_prefix: Whether the name of the worker is left out.
    """

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
            text = _highlighted(text, search.pattern)
        self._write(f"{NAME}{name}{RESET}{MARK}{mark}{RESET}{text}" if prefix else text)

    def _write(self, line: str, colour: str = "") -> None:
        stream = raw_stream(sys.stdout)
        stream.write(f"{colour}{line}{RESET}\n" if colour else f"{line}\n")
        stream.flush()


def _highlighted(text: str, pattern: re.Pattern[str]) -> str:
    return pattern.sub(lambda found: f"{MATCH}{found[0]}{RESET}" if found[0] else "", text)
