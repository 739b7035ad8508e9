"""The page of a timeline: clusters, folded lanes, curves, the wall clock, contrast, and what the pointer shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest

from flowdist.control.protocol.events import ControllerStarted
from flowdist.graph import SECOND
from flowdist.record.journal import Header
from flowdist.record.replay import Replay
from flowdist.report.record.page import page_data, timeline_page
from flowdist.report.record.spending import goodput_line, time_of_run
from flowdist.report.record.timeline import Timeline, timeline_of
from tests.report.browser import Browser, details, find_browser, needs_browser, opened, place_of
from tests.report.records import crash_loop, simulated

BEGAN = "2026-11-25T22:46:58.120+01:00"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    made = Browser(find_browser() or "", tmp_path / "profile")
    yield made
    made.close()


def lost_node(**fields: str) -> Timeline:
    header, *lines = simulated("gang.py", "node2@3m/2m").lines
    assert isinstance(header, Header)
    return timeline_of(msgspec.structs.replace(header, **fields), lines)


def tip(browser: Browser) -> str:
    browser.frame()
    return str(browser.value("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"))


def test_the_page_has_the_name_of_the_run_and_the_wall_clock() -> None:
    timeline = lost_node(run_id="gang-20261125-224658-642c", began_at=BEGAN)
    page = timeline_page(timeline)
    assert "<title>gang-20261125-224658-642c: timeline</title>" in page
    assert "run gang-20261125-224658-642c, began 2026-11-25 22:46:58 (UTC+0100)" in page
    assert page_data(timeline)["clock"] == [[0, 1_795_643_218_120, 60]]


def test_the_clock_goes_on_later_when_a_run_is_resumed() -> None:
    header, lines = crash_loop(1, 1)
    replay = Replay(header)
    for line in lines:
        replay.hear(line)
    later = replay.decide(ControllerStarted(2, at="2026-11-26T08:00:00.000+01:00"), 80 * SECOND)
    timeline = timeline_of(msgspec.structs.replace(header, began_at=BEGAN), [*lines, later])
    assert [t_ns // SECOND for t_ns, _ in timeline.clock] == [0, 80]
    assert timeline.clock[1][1].isoformat() == "2026-11-26T08:00:00+01:00"


@pytest.mark.parametrize("text", ["", "yesterday", "2026-99-99T00:00:00"])
def test_a_record_without_a_clock_that_can_be_read_shows_none(text: str) -> None:
    timeline = lost_node(run_id="a-run", began_at=text)
    assert page_data(timeline)["clock"] == [] and ">run a-run</p>" in timeline_page(timeline)


def test_the_goodput_of_a_curve_is_rounded_once() -> None:
    header, *lines = simulated("gang.py", "node2@3m/2m").lines
    assert isinstance(header, Header)
    timeline = timeline_of(header, lines)
    timeline.curves.goodput = [(0, 0.0), (1, 0.97148)]
    assert page_data(timeline)["curves"]["goodput"][-1][1] == 97.1, "the report says 97.1 %"


def test_the_figures_of_the_page_are_those_of_the_report() -> None:
    header, *lines = simulated("gang.py", "node2@3m/2m").lines
    assert isinstance(header, Header)
    replay, timeline = Replay(header), timeline_of(header, lines)
    for line in lines:
        replay.hear(line)
    report, data = time_of_run(header.graph, replay.sheet), page_data(timeline)
    assert data["goodput"] == goodput_line(report) and data["goodput"].startswith("goodput ")
    assert data["lost"] == [["trainer", round(report["lost_work_s"]["trainer"] * 1e6)]]
    assert data["curves"]["goodput"][-1][1] == round(100 * report["goodput"], 1)
    assert [name for name, _ in data["curves"]["steps"]] == ["trainer"]


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


GROUNDS = ("ground", "panel", "band")
PAIRS = [(text, on) for text in ("text", "quiet") for on in GROUNDS]
PAIRS += [(mark, on) for mark in ("bad", "incident", "saved", "focus") for on in GROUNDS]
PAIRS += [("onbar", bar) for bar in ("starting", "running", "ready", "stopping")]
PAIRS += [("hatch", bar) for bar in ("starting", "running", "ready", "stopping")]
PAIRS += [("onmark", "bad"), ("onmark", "incident")]


def themes() -> list[dict[str, str]]:
    """Return the colours of each block of the style that sets them: light, dark by the system, dark by choice."""
    style = (files("flowdist.report.record") / "page.css").read_text()
    blocks = [dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block)) for block in style.split("}")]
    return [block for block in blocks if block]


@pytest.mark.parametrize(("fore", "back"), PAIRS)
def test_text_and_marks_stand_out_from_what_they_lie_on(fore: str, back: str) -> None:
    light, *dark = themes()
    assert dark[0] == dark[1] and len(dark) == 2 and dark[0].keys() == light.keys()
    for theme in (light, dark[0]):
        assert contrast(theme[fore], theme[back]) >= 4.5, f"{theme[fore]} on {theme[back]}"


def test_the_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == 21 and contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@needs_browser
def test_in_a_browser_marks_that_would_overlap_are_one_with_their_number(browser: Browser, tmp_path: Path) -> None:
    opened(browser, timeline_of(*crash_loop(2, 400)), tmp_path)
    counts = browser.value("marks().clusters.map(c => c.marks.length)")
    alone = browser.value("marks().alone.length")
    assert sum(counts) + alone == 400 and 5 < len(counts) + alone < 100
    first = "marks().clusters[0]"
    place = "(c => { const b = canvas.getBoundingClientRect(), p = placeOf(c); "
    place += f"return [b.left + p.left + p.wide / 2, b.top + levelOf(c)]; }})({first})"
    browser.click(*browser.value(place))
    size = browser.value(f"{first}.marks.length")
    assert f"{size} incidents" in details(browser) and f"{size} exit" in details(browser)
    before = browser.value("state.t1 - state.t0")
    browser.press("Enter")
    assert browser.value("state.t1 - state.t0") < before
    shown = browser.value("marks().clusters.reduce((n, c) => n + c.marks.length, 0) + marks().alone.length")
    assert size <= shown < 2 * size
    browser.press("n")
    assert "Incident 1:" in details(browser), "the keys still reach each of them"


@needs_browser
def test_in_a_browser_lanes_without_a_failure_are_folded_until_somebody_wants_them(
    browser: Browser, tmp_path: Path
) -> None:
    opened(browser, timeline_of(*crash_loop(40, 3)), tmp_path)
    lanes = "rows.filter(r => r.kind === 'lane').map(r => r.label)"
    assert browser.value(lanes) == ["trainer/0", "trainer/1", "trainer/2"]
    fold = "rows.find(r => r.kind === 'fold')"
    assert browser.value(f"{fold}.label") == "+ 37 without failure"
    assert browser.value(f"Math.max(...{fold}.points.map(p => p[1]))") == 37
    browser.click(*place_of(browser, f"{fold}.items[0]"))
    assert len(browser.value(lanes)) == 40 and browser.value(fold) is None
    browser.press("f")
    browser.press("f")
    assert len(browser.value(lanes)) == 3
    browser.value("select(attempts.find(a => names[a.replica] === 'trainer/30'), true)")
    browser.frame()
    assert "trainer/30" in browser.value(lanes), "what is selected has a lane"
    browser.press("v")
    assert browser.value(fold) is not None, "so are nodes"


@needs_browser
def test_in_a_browser_a_few_lanes_are_not_folded(browser: Browser, tmp_path: Path) -> None:
    opened(browser, timeline_of(*crash_loop(8, 1)), tmp_path)
    assert browser.value("rows.filter(r => r.kind === 'lane').length") == 8


@needs_browser
def test_in_a_browser_curves_can_be_read_and_the_clock_is_on_the_axis(browser: Browser, tmp_path: Path) -> None:
    opened(browser, lost_node(run_id="a-run", began_at=BEGAN), tmp_path)
    assert browser.value("rows.filter(r => r.kind === 'curve').map(r => r.label)") == [
        "goodput so far",
        "steps per second",
    ]
    x, y = browser.value(
        "(r => { const b = canvas.getBoundingClientRect(); "
        "return [b.left + x(60e6), b.top + r.y + r.height / 2]; })(rows.find(r => r.note && r.most < 100))"
    )
    browser.mouse("mouseMoved", x, y)
    shown = tip(browser)
    assert "steps per second: " in shown and "2026-11-25 22:47:5" in shown
    browser.value("select(incidents[0])")
    assert "2026-11-25 22:49:58" in details(browser)


@needs_browser
def test_in_a_browser_the_pointer_does_not_say_again_what_the_panel_says(browser: Browser, tmp_path: Path) -> None:
    opened(browser, lost_node(), tmp_path)
    lost = "attempts.find(a => names[a.replica] === 'trainer/2' && a.number === 1)"
    place = place_of(browser, lost)
    browser.mouse("mouseMoved", *place)
    assert "trainer/2, attempt 1" in tip(browser) and "Generation" not in tip(browser)
    browser.click(*place)
    assert "Generation" in details(browser)
    browser.mouse("mouseMoved", place[0] + 1, place[1])
    assert tip(browser) == ""


@needs_browser
def test_in_a_browser_the_name_on_a_bar_hides_no_phase(browser: Browser, tmp_path: Path) -> None:
    """The ground of the name once had the colour of the first phase, as if the start-up had taken so long."""
    header, lines = crash_loop(1, 1)
    opened(browser, timeline_of(header, lines), tmp_path)
    browser.value("window_(0, end)")
    browser.frame()
    drawn = browser.value("captions.map(c => c.phases.map(([from, to]) => [from, to]))")
    attempts = browser.value("attempts.map(a => [a.t0, a.running, a.t1])")
    assert drawn and all(phases[0][0] in [t0 for t0, _, _ in attempts] for phases in drawn)
    for phases in drawn:
        [(_, running, _)] = [each for each in attempts if each[0] == phases[0][0]]
        assert len(phases) == 1 or phases[1][0] == running


def test_the_data_is_the_same_text_for_the_same_record() -> None:
    data = [json.dumps(page_data(lost_node(began_at=BEGAN))) for _ in range(2)]
    assert data[0] == data[1]
