"""`make gpu` without a GPU: when it is played, which rows, for how long, and what it prints. GPUs are lists here."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from flowdist.runtime.gpus.driver import Gpu
from tests.gpu import __main__ as command
from tests.gpu.__main__ import END, Outcome, markdown, played, why_not_here, why_skipped, write_docs
from tests.gpu.bench import Bench, Broken, Recovery, recoveries, steps
from tests.gpu.rows import ROWS, Row, compared

ONE = (Gpu("0", "GPU-a", "H200", 140 << 30),)
TWO = (*ONE, Gpu("1", "GPU-b", "H200", 140 << 30))


@pytest.mark.parametrize(
    ("gpus", "devices", "nvml", "reason"),
    [
        ((), 0, True, "no GPU that flowdist can find"),
        (ONE, None, True, "torch is not installed"),
        (ONE, 0, True, "it needs a build with CUDA"),
        (ONE, 1, False, "nvidia-ml-py is not installed"),
        (ONE, 1, True, ""),
    ],
)
def test_a_machine_that_cannot_play_it_gets_the_reason(
    gpus: Sequence[Gpu], devices: int | None, nvml: bool, reason: str
) -> None:
    said = why_not_here(gpus, devices, nvml)
    assert reason in said and bool(said) == bool(reason)


def test_without_a_gpu_the_command_says_so_and_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tests.gpu"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(command, "torch_devices", lambda: 0)
    assert command.main() == 4
    assert "not played: this machine has no GPU" in capsys.readouterr().err


def test_rows_that_need_more_gpus_or_time_are_skipped_with_the_reason() -> None:
    several = next(row for row in ROWS if row.gpus_min == 2)
    assert why_skipped(several, ONE, False, 500) == "needs 2 GPUs; this machine has 1"
    assert why_skipped(several, TWO, False, 500) == ""
    assert why_skipped(several, TWO, True, 500) == "says nothing without a GPU"
    assert why_skipped(several, TWO, False, 5) == "the time for all rows is over"
    assert why_skipped(several._replace(needs="no_such_package"), TWO, False, 500).startswith("needs no_such_package,")


def test_all_rows_take_less_than_ten_minutes_on_one_gpu() -> None:
    assert sum(row.limit_s for row in ROWS if row.gpus_min == 1) <= command.TOTAL_S < 600


def outcome_of(play: object, gpus: Sequence[Gpu] = ONE) -> Outcome:
    return played(Row("row", "a promise", play), gpus, False, time.monotonic() + 100)  # type: ignore[arg-type]


def broken(bench: Bench) -> str:
    raise Broken("3 MiB | stay taken")


def wrong(bench: Bench) -> str:
    raise ValueError("bad")


def test_a_row_is_kept_broken_or_ends_with_its_error() -> None:
    kept = outcome_of(lambda bench: f"{bench.workers} worker(s)", TWO)
    assert (kept.is_kept, kept.observed) == (True, "2 worker(s)")
    assert outcome_of(broken)[1:3] == (False, "3 MiB | stay taken")
    assert outcome_of(wrong)[1:3] == (False, "ValueError: bad")


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.BEGIN}old\n{END}after\n")
    write_docs([outcome_of(broken)], ONE, page)
    text = page.read_text()
    assert "old" not in text and text.startswith("before\n") and text.endswith(f"{END}after\n")
    assert "Measured on 1 x H200." in text and "| row | a promise | BROKEN | 3 MiB \\| stay taken |" in text
    assert markdown([], ONE).count("\n") == 3


def stamped(folder: Path, *entries: tuple[int, int, int, int]) -> Bench:
    """Return a bench whose workers have written these steps: generation, rank, step and time (ns)."""
    names = ("generation", "rank", "step", "t_ns")
    lines = [{"word": "step", "pid": 0, **dict(zip(names, entry, strict=True))} for entry in entries]
    (folder / "ours").write_text("\n".join(map(str, lines)).replace("'", '"') + '\n{"word": "st')
    return Bench(folder, TWO, False, time.monotonic() + 0.01)


def test_steps_are_those_of_a_generation_and_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    bench = stamped(tmp_path, (0, 0, 1, 5), (0, 1, 1, 6), (0, 0, 2, 7), (1, 0, 1, 9))
    assert [each["t_ns"] for each in steps(bench, "ours", 0, 1)] == [5, 6]
    assert [each["t_ns"] for each in steps(bench, "ours", 1, 1)] == [9]


def test_a_job_that_does_not_come_to_its_steps_breaks_the_row(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="time is over"):
        recoveries(stamped(tmp_path, (0, 0, 1, 5)), "ours", 1)


def test_the_ratio_is_that_of_the_first_kills() -> None:
    text = compared(Recovery([0.5, 0.3]), Recovery([10.0]))
    assert text == "flowdist 0.50 s, 0.30 s (first and second kill), torchrun 10.00 s: 0.05 of it"


def test_the_names_of_rows_are_unique() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
