"""When an attempt last wrote output, on a machine whose wall clock is set meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from flowdist.runtime.clock import boot_ns
from flowdist.runtime.run_folder.logs import STACKS_FOLLOW, OutputWatch, announce_stacks

HOUR_NS = 3600 * 10**9


class Wall:
    """A wall clock that can be set."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "0").mkdir()
    return tmp_path / "0/stdout.log"


def write(log: Path, wall: Wall) -> None:
    """Have a worker print a line: its file has the time of the wall clock."""
    with log.open("a") as file:
        file.write("a line\n")
    os.utime(log, ns=(wall(), wall()))


def test_output_has_the_time_at_which_it_was_written(log: Path) -> None:
    wall = Wall()
    output = OutputWatch(log.parents[1], wall)
    assert output.last_output_ns() is None
    before = boot_ns()
    write(log, wall)
    after = boot_ns()
    seen = output.last_output_ns()
    took = boot_ns() - after  # it reads two clocks, one after the other, and may be kept waiting between them
    assert seen is not None and before - took - 10**6 <= seen <= after + took + 10**6
    assert output.last_output_ns() == seen, "nothing new was written"


@pytest.mark.parametrize("jump_ns", [HOUR_NS, -HOUR_NS])
def test_output_before_a_jump_of_the_clock_counts_as_new_once(log: Path, jump_ns: int) -> None:
    wall = Wall()
    output = OutputWatch(log.parents[1], wall)
    write(log, wall)
    wall.ahead_ns = jump_ns
    asked = boot_ns()
    seen = output.last_output_ns()
    assert seen is not None and seen >= asked, "it may have been written a moment ago: no hang may be seen"
    assert output.last_output_ns() == seen, "the same output does not count again"


def test_output_whose_file_has_an_impossible_time_counts_as_new(log: Path) -> None:
    """The clock of a file server is wrong by an hour."""
    wall = Wall()
    output = OutputWatch(log.parents[1], wall)
    for wrong_ns in (-HOUR_NS, HOUR_NS):
        write(log, wall)
        os.utime(log, ns=(wall() + wrong_ns, wall() + wrong_ns))
        asked = boot_ns()
        seen = output.last_output_ns()
        assert seen is not None and seen >= asked


def test_logs_that_a_worker_has_removed_are_no_output(log: Path) -> None:
    wall = Wall()
    output = OutputWatch(log.parents[1], wall)
    write(log, wall)
    seen = output.last_output_ns()
    log.unlink()
    assert seen is not None and (output.last_output_ns() or 0) >= seen


def test_stacks_are_announced_on_a_line_of_their_own(tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    announce_stacks(log)
    assert not log.exists()  # its worker is gone with its folder: nothing to say
    for before in ("", "a line\n"):
        log.write_text(before)
        announce_stacks(log)
        assert log.read_text() == f"{before}{STACKS_FOLLOW}\n"
    log.write_text("a line\n50 %")
    announce_stacks(log)
    assert log.read_text() == f"a line\n50 %\n{STACKS_FOLLOW}\n"
