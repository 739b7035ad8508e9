"""Plot of goodput over the checkpoint interval, as SVG: the sweep, its best interval, and that of today."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from flowdist.advice.intervals import Point
from flowdist.graph import format_duration
from flowdist.text.printable import one_line

WIDTH, HEIGHT = 720, 380  # pixels
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 48  # margins
LINES = 5  # horizontal lines of the grid, about
APART = 90  # pixels between two labels of the lower axis
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#24292f}.title{font-size:14px;font-weight:600}.grid{stroke:#d0d7de}"
    ".curve{fill:none;stroke:#0969da;stroke-width:2}.error{stroke:#0969da;opacity:.45}.point{fill:#0969da}"
    ".best{stroke:#1a7f37;stroke-width:2}.today{stroke:#bc4c00;stroke-width:2;stroke-dasharray:5 4}"
    ".best-text{fill:#1a7f37;font-weight:600}.today-text{fill:#bc4c00;font-weight:600}"
)


def interval_plot(title: str, points: Sequence[Point], best_ns: int, today_ns: int) -> str:
    """Return the plot as a whole SVG document, the same text for the same points: at least one, shortest first."""
    plot = _Plot(points)
    is_same = today_ns == best_ns
    marks = [plot.mark(best_ns, "best", f"{'best, and today' if is_same else 'best'}: {format_duration(best_ns)}", 36)]
    if not is_same:
        marks.append(plot.mark(today_ns, "today", f"today: {format_duration(today_ns)}", 50))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" width="{WIDTH}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text class="title" x="{LEFT}" y="20">{escape(one_line(title))}</text>',
            *plot.axes(),
            *plot.curve(),
            *marks,
            "</svg>\n",
        ]
    )


class _Plot:
    """Scales of the plot: the logarithm of the interval to the right, goodput upwards."""

    def __init__(self, points: Sequence[Point]) -> None:
        self._points = points
        self._left, self._right = math.log(points[0].interval_ns), math.log(points[-1].interval_ns)
        low = min(point.goodput - (point.half or 0.0) for point in points)
        high = max(point.goodput + (point.half or 0.0) for point in points)
        self._unit = _grid_unit(max(high - low, 0.001))
        self._low = max(0.0, math.floor(low / self._unit) * self._unit)
        self._high = max(self._low + self._unit, min(1.0, math.ceil(high / self._unit) * self._unit))

    def x(self, interval_ns: int) -> float:
        """Return the place of an interval from the left, in pixels."""
        if self._right == self._left:
            return LEFT + (WIDTH - LEFT - RIGHT) / 2
        share = (math.log(interval_ns) - self._left) / (self._right - self._left)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, goodput: float) -> float:
        """Return the place of a goodput from the top, in pixels."""
        share = (min(self._high, max(self._low, goodput)) - self._low) / (self._high - self._low)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 1)

    def axes(self) -> list[str]:
        """Return the grid with its labels."""
        lines = []
        for number in range(round((self._high - self._low) / self._unit) + 1):
            value = self._low + number * self._unit
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            lines.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{100 * value:.4g} %</text>')
        last = -math.inf
        for point in self._points:
            x = self.x(point.interval_ns)
            if x - last >= APART:
                text = format_duration(point.interval_ns)
                lines.append(f'<text x="{x}" y="{HEIGHT - 26}" text-anchor="middle">{text}</text>')
                last = x
        middle = (LEFT + WIDTH - RIGHT) / 2
        lines.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">time between checkpoints</text>')
        return lines

    def curve(self) -> list[str]:
        """Return the points with their confidence intervals, joined by a line."""
        places = [(self.x(point.interval_ns), self.y(point.goodput), point) for point in self._points]
        path = " ".join(f"{x},{y}" for x, y, _ in places)
        lines = [f'<polyline class="curve" points="{path}"/>']
        for x, y, point in places:
            if point.half:
                top, bottom = self.y(point.goodput + point.half), self.y(point.goodput - point.half)
                lines.append(f'<line class="error" x1="{x}" x2="{x}" y1="{top}" y2="{bottom}"/>')
            text = f"{format_duration(point.interval_ns)}: {100 * point.goodput:.2f} %"
            lines.append(f'<circle class="point" cx="{x}" cy="{y}" r="3"><title>{text}</title></circle>')
        return lines

    def mark(self, interval_ns: int, name: str, text: str, height: int) -> str:
        """Return a vertical line at an interval, with a text `height` pixels from the top."""
        x = self.x(interval_ns)
        side = "end" if x > WIDTH / 2 else "start"
        line = f'<line class="{name}" x1="{x}" x2="{x}" y1="{height + 4}" y2="{HEIGHT - BOTTOM}"/>'
        return f'{line}\n<text class="{name}-text" x="{x}" y="{height}" text-anchor="{side}">{escape(text)}</text>'


def _grid_unit(span: float) -> float:
    """Return a round distance of grid lines, 1, 2 or 5 times a power of ten, of which a span has about `LINES`."""
    power = 10.0 ** math.floor(math.log10(span / LINES))
    return next((power * step for step in (1, 2, 5) if span / (power * step) <= LINES), power * 10)
