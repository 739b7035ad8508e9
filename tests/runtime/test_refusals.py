"""The log of refusals stays small, whatever is sent."""

from __future__ import annotations

import pytest

from flowdist.runtime.controller import refusals
from flowdist.runtime.controller.refusals import LINES_MAX, SOURCES_MAX, TEXT_MAX, Refusals


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time as the refusals see it, in a list, in seconds."""
    time = [1000.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: time[0])
    return time


def test_a_source_gets_one_line_a_minute_with_the_number_of_refusals(
    now: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    log = Refusals()
    for _ in range(1000):
        log.note("gpu07", "it lies")
    log.note("gpu08", "it lies too")
    now[0] += 61
    log.note("gpu07", "it still lies")
    log.sum_up()
    assert capsys.readouterr().err.splitlines() == [
        "flowdist: gpu07 was refused: it lies",
        "flowdist: gpu08 was refused: it lies too",
        "flowdist: gpu07 was refused: it still lies (and 999 times more since the last such line)",
        "flowdist: 1002 connections and messages were refused in all",
    ]


def test_a_text_of_another_host_reaches_the_log_without_escapes_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    Refusals().note("gpu07", "\x1b]0;title\x07\r\n" + "x" * 10_000)
    text = capsys.readouterr().err
    assert text.startswith(r"flowdist: gpu07 was refused: \u001b]0;title\u0007\u000d\u000axxx")
    assert len(text) < TEXT_MAX + 20


def test_many_sources_do_not_fill_the_memory(capsys: pytest.CaptureFixture[str]) -> None:
    log = Refusals()
    for number in range(3 * SOURCES_MAX):
        log.note(f"host{number}", "it lies")
    assert len(log._sources) == SOURCES_MAX


def test_many_sources_do_not_fill_the_log(now: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    log = Refusals()
    for number in range(20_000):
        now[0] += 0.01  # 200 s in all
        log.note(f"a connection from 10.0.{number % 1000}.1", "it lies")
    count = len(capsys.readouterr().err.splitlines())
    assert LINES_MAX * 3 <= count <= LINES_MAX * 4


def test_nothing_is_said_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Refusals().sum_up()
    assert capsys.readouterr().err == ""
