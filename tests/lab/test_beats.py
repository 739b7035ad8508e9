"""The oracle of the lab: it sees two generations at once, and nothing else."""

from __future__ import annotations

from pathlib import Path

from tests.lab.beats import Beat, overlaps, read_beats


def beat(t_ns: int, generation: int, host: str = "h0") -> Beat:
    return Beat(t_ns, generation, 3, 0, host, 100 + generation)


def test_generations_one_after_the_other_do_not_overlap() -> None:
    assert overlaps([]) == []
    assert overlaps([beat(1, 1), beat(2, 1, "h1"), beat(3, 2), beat(4, 2, "h1"), beat(5, 4)]) == []


def test_a_worker_of_an_earlier_generation_that_still_runs_is_found_once() -> None:
    late = [beat(4, 1, "h1"), beat(5, 1, "h1")]
    assert overlaps([beat(1, 1), beat(2, 1, "h1"), beat(3, 2), *late]) == [(beat(3, 2), late[0])]


def test_generations_that_run_in_the_wrong_order_overlap() -> None:
    assert overlaps([beat(1, 3), beat(2, 2)]) == [(beat(1, 3), beat(2, 2))]


def test_a_line_that_is_not_complete_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "beats").write_text("2 1 3 0 h0 7\n1 1 3 1 h1 8\n3 1 3")
    assert read_beats(tmp_path / "beats") == [Beat(1, 1, 3, 1, "h1", 8), Beat(2, 1, 3, 0, "h0", 7)]
    assert read_beats(tmp_path / "none") == []
