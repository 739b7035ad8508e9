"""The plot of goodput over the interval: valid XML, marks where they belong, and no text that could command a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from flowdist.advice.drawing import interval_plot
from flowdist.advice.intervals import Point
from flowdist.graph import MINUTE

SVG = "{http://www.w3.org/2000/svg}"
POINTS = [Point(MINUTE, 0.5, 0.02, 0), Point(4 * MINUTE, 0.9, 0.01, 0), Point(16 * MINUTE, 0.6, None, 0)]


def drawn(points: list[Point], best_ns: int, today_ns: int, title: str = "a job") -> ET.Element:
    return ET.fromstring(interval_plot(title, points, best_ns, today_ns))


def lines(picture: ET.Element, name: str) -> list[ET.Element]:
    return [line for line in picture.iter(f"{SVG}line") if line.get("class") == name]


def test_points_stand_where_their_values_are() -> None:
    picture = drawn(POINTS, 4 * MINUTE, 16 * MINUTE)
    circles = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in picture.iter(f"{SVG}circle")]
    (a, low), (b, high), (c, middle) = circles
    assert b - a == pytest.approx(c - b, abs=0.2), "the axis is logarithmic"
    assert high < middle < low and len(lines(picture, "error")) == 2
    (best,), (today,) = lines(picture, "best"), lines(picture, "today")
    assert float(best.get("x1", "")) == b and float(today.get("x1", "")) == c


def test_where_today_is_the_best_there_is_one_mark() -> None:
    picture = drawn(POINTS, 4 * MINUTE, 4 * MINUTE)
    assert len(lines(picture, "best")) == 1 and not lines(picture, "today")
    assert "best, and today: 4m" in ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]


@pytest.mark.parametrize("points", [POINTS[:1], [Point(MINUTE, 0.0, None, 3)], [Point(n, 1.0, 0.0, 0) for n in (1, 2)]])
def test_few_or_flat_points_are_drawn_too(points: list[Point]) -> None:
    ns = points[0].interval_ns
    assert len(list(drawn(points, ns, ns).iter(f"{SVG}circle"))) == len(points)


def test_a_title_cannot_end_the_drawing() -> None:
    picture = drawn(POINTS, 4 * MINUTE, 4 * MINUTE, "</text></svg><script>x</script>\x1b[2J")
    assert [each.tag for each in picture.iter() if "script" in each.tag] == []
    assert len(list(picture.iter(f"{SVG}circle"))) == 3
