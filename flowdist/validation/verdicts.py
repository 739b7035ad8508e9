"""Verdicts on published results: does the simulated value, with its whole confidence interval, agree as stated?"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from flowdist.report.goodput import Estimate, estimate
from flowdist.text.printable import table
from flowdist.validation.play import values_of
from flowdist.validation.rows import Claim, Row

Verdict = Literal["agrees", "miss", "differs", "unsure", "agrees unexpectedly"]
GOOD: tuple[Verdict, ...] = ("agrees", "miss")  # verdicts that the file of the row has announced
UNITS = {
    "goodput": "share of the time", "waiting": "share of the time", "interruptions": "interruptions",
    "hours between interruptions": "h", "hours lost per interruption": "h", "best interval": "min",
}  # fmt: skip


class Judged(NamedTuple):
    """Row with the simulated value and the verdict."""

    row: Row
    value: Estimate
    verdict: Verdict

    @property
    def is_good(self) -> bool:
        """Return whether the verdict is the one that the file of the row has announced."""
        return self.verdict in GOOD

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the row for `--json`: what was published, what was simulated, and the verdict."""
        row = self.row
        names = ("name", "title", "quantity", "published", "bound", "tolerance", "why", "source", "place", "says")
        told = {name: getattr(row, name) for name in (*names, "represents", "miss")}
        return {**told, "unit": UNITS[row.quantity], "value": self.value.mean, "half": self.value.half} | {
            "verdict": self.verdict
        }


def judge(row: Row) -> Judged:
    """Simulate the job of a row and return the verdict; an unsure one needs more seeds or a longer time."""
    value = estimate(*values_of(row))
    return Judged(row, value, verdict_on(row, value))


def verdict_on(row: Row, value: Estimate) -> Verdict:
    """Return the verdict on a simulated value with its confidence interval, as `judge` does."""
    if value.half is None:
        return "unsure"
    low, high = value.mean - value.half, value.mean + value.half
    least = -float("inf") if row.bound == "at most" else row.published - row.tolerance
    most = float("inf") if row.bound == "at least" else row.published + row.tolerance
    if least <= low and high <= most:
        return "agrees unexpectedly" if row.miss else "agrees"
    if high < least or most < low:
        return "miss" if row.miss else "differs"
    return "unsure"


def verdicts_text(judged: list[Judged], claims: list[Claim]) -> str:
    """Return the table of all rows for the terminal, then why each miss misses, then what cannot be simulated."""
    rows: list[tuple[str, ...]] = [("", "published", "simulated", "tolerance", "verdict")]
    rows += [(one.row.name, *_numbers(one), one.verdict) for one in judged]
    lines = table(rows)
    for one in judged:
        if one.verdict != "agrees":
            reason = one.row.miss or "the simulated value and the published one differ by more than the tolerance"
            lines += ["", f"{one.row.name}: {one.verdict}", f"  {one.row.title}", f"  {reason}"]
    good = sum(one.is_good for one in judged)
    misses = sum(one.verdict == "miss" for one in judged)
    sources = len({one.row.source for one in judged})
    lines += ["", f"{good} of {len(judged)} rows are as stated, {misses} of them misses; from {sources} sources"]
    if claims:
        lines.append(f"{len(claims)} more results cannot be simulated: evidence/truth.md names them")
    return "\n".join(lines) + "\n"


def verdicts_markdown(judged: list[Judged], claims: list[Claim]) -> str:
    """Return the tables of evidence/truth.md: what agrees, what misses, what cannot be simulated."""
    lines = ["| row | published | simulated | tolerance | source |", "|---|---|---|---|---|"]
    for one in judged:
        if not one.row.miss:
            lines.append(_markdown_row(one, f"{one.row.source}, {one.row.place}"))
    lines += ["", "## Misses", "", "| row | published | simulated | tolerance | why |", "|---|---|---|---|---|"]
    lines += [_markdown_row(one, f"{one.row.miss} ({one.row.source})") for one in judged if one.row.miss]
    lines += ["", "## What cannot be simulated", "", "| published | why it is no row |", "|---|---|"]
    lines += [f"| {claim.says} ({claim.source}) | {claim.why} |" for claim in claims]
    return "\n".join(lines) + "\n"


def _markdown_row(one: Judged, last: str) -> str:
    published, simulated, tolerance = _numbers(one)
    return f"| `{one.row.name}`: {one.row.title} | {published} | {simulated} | {tolerance} | {last} |"


def _numbers(one: Judged) -> tuple[str, str, str]:
    """Return the published number, the simulated one with its interval, and the tolerance, in the row's unit."""
    row, (mean, half) = one.row, one.value
    bound = f"{row.bound} " if row.bound else ""
    if UNITS[row.quantity] == "share of the time":
        simulated = f"{100 * mean:.2f}" + (f" +- {100 * half:.2f} %" if half is not None else " %")
        return f"{bound}{100 * row.published:.4g} %", simulated, f"{100 * row.tolerance:.3g} points"
    unit = "" if row.quantity == "interruptions" else f" {UNITS[row.quantity]}"
    simulated = f"{mean:.4g}" + (f" +- {half:.2g}{unit}" if half is not None else unit)
    return f"{bound}{row.published:.4g}{unit}", simulated, f"{row.tolerance:.3g}{unit}"
