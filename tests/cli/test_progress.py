"""Progress line of a simulation: shown after two seconds, and on a terminal alone."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flowdist.cli.shared.simulated import ProgressLine
from flowdist.graph import SECOND


def shown(*, after_s: float, quiet: bool = False, terminal: bool = True) -> str:
    out, times = io.StringIO(), [0.0]
    console = Console(file=out, force_terminal=terminal, width=100)
    with ProgressLine(quiet=quiet, console=console, clock=lambda: times[0]) as progress:
        times[0] = after_s
        progress.tell(3723 * SECOND, 12_000)
        progress.tell(3725 * SECOND, 13_000)
    return out.getvalue()


def test_after_two_seconds_it_is_told_how_far_the_simulation_is() -> None:
    assert "simulating: at 1:02:05, 13,000 events, in 2 s" in shown(after_s=2.1)


def test_the_line_says_something_from_the_first_moment_on() -> None:
    assert "at ," not in shown(after_s=2.1)


@pytest.mark.parametrize("case", [{"after_s": 1.9}, {"after_s": 9, "quiet": True}, {"after_s": 9, "terminal": False}])
def test_nothing_is_said_early_nor_where_nobody_looks(case: dict[str, float | bool]) -> None:
    assert "simulating" not in shown(**case)  # type: ignore[arg-type]
