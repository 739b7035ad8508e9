"""The picture at the bottom of a terminal: it stays there, and the lines above it stay whole, at any size."""

from __future__ import annotations

from typing import IO, cast

import pytest
from rich.console import Console, ConsoleDimensions

from flowdist.control.protocol.effects import Decided
from flowdist.control.protocol.events import TimePassed
from flowdist.record.journal import record
from flowdist.report.live.status import Span
from flowdist.report.live.terminal_view import PERIOD_S, LiveView, Pinned
from tests.report.terminal import Terminal
from tests.report.test_status import big_job

PICTURE = [[Span("first", "bold"), Span(" line")], [Span("second line", "green")]]


class _Console(Console):
    """Console that follows the size of its terminal."""

    def __init__(self, terminal: Terminal) -> None:
        super().__init__(file=cast("IO[str]", terminal), force_terminal=True, highlight=False, markup=False)
        self.terminal = terminal

    @property
    def size(self) -> ConsoleDimensions:
        return ConsoleDimensions(self.terminal.columns, self.terminal.lines)


def pinned_at(columns: int = 40, lines: int = 12, *, breaks_anew: bool = True) -> tuple[Terminal, Pinned]:
    terminal = Terminal(columns, lines, breaks_anew=breaks_anew)
    return terminal, Pinned(_Console(terminal))


def put(pinned: Pinned, *lines: str) -> None:
    for line in lines:
        pinned.print(line)
    pinned.flush()


def test_lines_scroll_by_above_the_picture() -> None:
    terminal, pinned = pinned_at()
    pinned.show(PICTURE)
    for number in range(0, 30, 3):
        put(pinned, *(f"worker {number + more}" for more in range(3)))
    told = [f"worker {number}" for number in range(30)]
    assert terminal.seen == [*told, "first line", "second line"] and not terminal.shows_cursor
    pinned.show([[Span("another")]])
    assert terminal.seen == [*told, "another"]
    pinned.print("the last one")
    pinned.close()
    assert terminal.seen == [*told, "the last one", ""] and terminal.shows_cursor


def test_a_line_that_is_wider_than_the_terminal_stays_whole() -> None:
    terminal, pinned = pinned_at(columns=20)
    pinned.show(PICTURE)
    put(pinned, "x" * 45)
    assert terminal.seen == ["x" * 20, "x" * 20, "x" * 5, "first line", "second line"]


def test_a_picture_is_cut_to_the_width() -> None:
    terminal, pinned = pinned_at(columns=9)
    pinned.show(PICTURE)
    assert terminal.seen == ["first li…", "second l…"]


@pytest.mark.parametrize(
    ("printed", "seen"),
    [
        ("10%\r55%\r100% done", "100% done"),  # a progress bar
        ("[trainer/0.1] 10%\r\x1b[32m100%\x1b[0m", "[trainer/0.1] 100%"),
        ("\x1b[31mred\x1b[0m and \x1b[2K\x1b[1Aerased", "red and erased"),
        ("\x07bell \x08back", "bellback"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1bcall is erased\x1b7", "all is erased"),
        ("cut off\x1b[", "cut off"),
        ("eight\x9b2Jbits", "eightbits"),
        ("tab\tstop", "tab     stop"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
        ("", ""),
    ],
)
def test_whatever_would_move_the_cursor_does_not_come_through(printed: str, seen: str) -> None:
    terminal, pinned = pinned_at()
    pinned.show(PICTURE)
    put(pinned, printed, "next")
    assert terminal.seen == [seen, "next", "first line", "second line"]


@pytest.mark.parametrize("breaks_anew", [True, False])
@pytest.mark.parametrize("sizes", [[(80, 24)], [(12, 8)], [(30, 5), (60, 20), (9, 4), (100, 30)]])
def test_after_a_resize_every_line_is_there_and_the_picture_at_the_bottom(
    breaks_anew: bool, sizes: list[tuple[int, int]]
) -> None:
    terminal, pinned = pinned_at(breaks_anew=breaks_anew)
    number = 0
    for columns, lines in [(40, 12), *sizes]:
        if (columns, lines) != (40, 12):
            terminal.resize(columns, lines)
        for _ in range(3):
            pinned.show(PICTURE)
            put(pinned, f"worker {number}")
            number += 1
    told = [row for row in terminal.seen if row.startswith("worker")]
    assert told == [f"worker {n}" for n in range(number)]
    cut = terminal.columns - 1
    assert [row[:cut] for row in terminal.seen[-2:]] == ["first line"[:cut], "second line"[:cut]]


def test_a_run_is_drawn_periodically_with_its_decisions() -> None:
    terminal, pinned = pinned_at(columns=100, lines=40)
    now = [0.0]
    feed = big_job()
    view = LiveView(pinned, "big-1", clock=lambda: now[0])
    view.hear(record(1, 5, TimePassed(), [Decided("world_forms", "", "the last decision")]))
    view.look(feed.controller.state, feed.now)
    assert terminal.seen[1].startswith("big-1  running  after 2m") and len(terminal.seen) <= 27
    assert any("the last decision" in row for row in terminal.seen)
    before = list(terminal.seen)
    view.hear(record(2, 6, TimePassed(), [Decided("world_forms", "", "a later one")]))
    view.look(feed.controller.state, feed.now)
    assert terminal.seen == before, "too soon"
    now[0] += PERIOD_S
    view.look(feed.controller.state, feed.now)
    assert any("a later one" in row for row in terminal.seen)
