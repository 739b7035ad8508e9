"""Advice as text for the terminal, as values for --json, and as an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from flowdist.advice.advise import Advice, Measured
from flowdist.advice.alternatives import Change
from flowdist.advice.comparison import Gain, is_sure
from flowdist.advice.drawing import interval_plot
from flowdist.advice.intervals import Point, rounded_ns
from flowdist.advice.playing import MODES
from flowdist.graph import HOUR, format_duration
from flowdist.report.goodput import Estimate
from flowdist.sim.experiment.play import Mode
from flowdist.text.printable import one_line, printable, table

HEADING = ("", "change", "today", "to", "goodput", "better in")
NOTHING = "Nothing gains more than its uncertainty."
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em;color:#24292f}"
    "pre{background:#f6f8fa;padding:1em;overflow-x:auto;font-size:13px}"
)
FEW_FAULTS = 10  # of all runs together: what so few show is the cost of runs without a fault


class Setting(NamedTuple):
    """Texts and numbers of a command line that advice is shown with."""

    title: str  # the name of the job
    runs: str  # what was simulated
    today_ns: int  # today's checkpoint interval
    unit: str  # what hours are counted of: "GPU" or "node"
    price: float | None  # of one such hour; None: none was given
    command: Callable[[list[str]], str]  # returns the command line that shows a change, by its words


def advice_text(advice: Advice, setting: Setting) -> str:
    """Return the advice for the terminal: a table of what to change, and the commands that show it."""
    lines = [f"{setting.title}: {setting.runs}", _today(advice), ""]
    sure, buys = advice.sure, [one for one in advice.measured if one.gain.verdict == "buys"]
    lines += ["What to change, each by itself", *_table(sure, 1, advice, setting), ""] if sure else [NOTHING, ""]
    if buys:
        title = f"More goodput or fewer failed runs, for more {setting.unit} hours"
        lines += [title, *_table(buys, len(sure) + 1, None, setting), ""]
    lines += _not_sure(advice)
    lines += ["Commands", *_commands([*sure, *buys], advice.together, setting)]
    lines += [f"\nnote: {note}" for note in advice.notes]
    return printable("\n".join(lines)) + "\n"


def _today(advice: Advice) -> str:
    """Return the goodput of today with its error, how many runs fail, and what Daly's formula says."""
    text = f"goodput today: {_percent(advice.goodput)}"
    failed, reason = advice.failed
    if failed:
        text += f"; {failed} run{'s' * (failed != 1)} failed: {one_line(reason)}"
    if advice.daly_ns is not None and advice.points:
        text += f"\nbest interval by Daly's formula: {format_duration(rounded_ns(advice.daly_ns))}"
        text += f", by the sweep: {format_duration(advice.best_ns or 0)}"
    return text


def _percent(value: Estimate) -> str:
    half = f" +- {100 * value.half:.2f}" if value.half is not None else ""
    return f"{100 * value.mean:.2f} %{half}"


def _table(found: Sequence[Measured], first: int, advice: Advice | None, setting: Setting) -> list[str]:
    """Return the rows of changes, numbered from `first`; with the advice, one of what is made together."""
    rows = [(str(number), *_row(one, setting)) for number, one in enumerate(found, first)]
    if advice is not None and advice.together is not None:
        numbers = [str(number) for number, one in enumerate(found, first) if one in advice.joined]
        rows.append(("", f"{' and '.join(numbers)} together", "", "", *_figures(advice.together.gain, setting)))
    money = ("cost saved",) if setting.price is not None else ()
    ended = ("failed runs",) if any(one.gain.failed or one.gain.still_failed for one in found) else ()
    heading = (*HEADING[:5], f"{setting.unit} hours saved", *money, HEADING[5], *ended)
    cut = len(heading)
    return table([heading, *(row[:cut] for row in rows)])


def _row(one: Measured, setting: Setting) -> tuple[str, ...]:
    (change,) = one.changes
    return (change.what, change.today, change.proposed, *_figures(one.gain, setting))


def _figures(gain: Gain, setting: Setting) -> tuple[str, ...]:
    """Return what a change gains: goodput, hours, money if there is a price, in how many seeds, and failed runs."""
    share = f" ({100 * gain.share:+.1f} %)"
    money = (_amount(gain.hours, setting.price),) if setting.price is not None else ()
    return (
        _signed(gain.goodput, 100, 2),
        _amount(gain.hours, 1) + share if gain.hours is not None else "unknown",
        *money,
        f"{gain.better} of {gain.seeds} seeds",
        f"{gain.failed} to {gain.still_failed}",
    )


def _amount(value: Estimate | None, factor: float) -> str:
    """Return hours, or hours times a price, with as many decimal places as are worth showing."""
    if value is None:
        return "unknown"
    size = max(abs(value.mean), value.half or 0.0) * factor
    return _signed(value, factor, 0 if size >= 100 else 2 if size >= 1 else 4)


def _signed(value: Estimate, factor: float, places: int) -> str:
    """Return a difference with its sign and its error, both times a factor: `+1,234 +- 57`."""
    half = f" +- {factor * value.half:,.{places}f}" if value.half is not None else ""
    return f"{factor * value.mean:+,.{places}f}{half}"


def _not_sure(advice: Advice) -> list[str]:
    """Return a line for each change whose gain is not sure, and one for all that gained nothing."""
    unsure = [one for one in advice.measured if one.gain.verdict == "unsure"]
    lines = [_line(one.changes[0], one.gain) for one in unsure]
    lines = ["Tried, and not sure to gain anything (goodput points)", *lines, ""] if lines else []
    rest = [_line(one.change, one.gain, one.reason) for one in advice.tried]
    return [*lines, "Tried without a gain, or less than the best of its kind", *rest, ""] if rest else lines


def _line(change: Change, gain: Gain | None, reason: str = "") -> str:
    """Return what a change gains in a line; for one that was not played (None), the reason."""
    if gain is None:
        return f"  {change.what} {change.proposed}: not played, {one_line(reason)}"
    failed = f", failed runs {gain.failed} to {gain.still_failed}" if gain.failed != gain.still_failed else ""
    return f"  {change.what} {change.proposed}: {_signed(gain.goodput, 100, 2)}{failed}"


def _commands(found: Iterable[Measured], together: Measured | None, setting: Setting) -> list[str]:
    """Return the command lines that show today's job and each change, by number."""
    rows: list[tuple[str, ...]] = [("today", setting.command([]))]
    rows += [(str(number), setting.command(_words(one))) for number, one in enumerate(found, 1)]
    rows += [("together", setting.command(_words(together)))] if together is not None else []
    return table(rows)


def _words(one: Measured) -> list[str]:
    return [word for change in one.changes for word in change.words]


def advice_values(advice: Advice, setting: Setting) -> dict[str, Any]:
    """Return the advice as plain values, for --json. Gains of goodput are shares, not points."""
    return {
        "mode": MODES[advice.mode],
        "role": advice.role,
        "runs": setting.runs,
        "unit": f"{setting.unit}-hour",
        "price": setting.price,
        "goodput": advice.goodput,
        "failed": {"runs": advice.failed[0], "reason": advice.failed[1]},
        "interval": {
            "today_s": setting.today_ns / 1e9,
            "best_s": advice.best_ns / 1e9 if advice.best_ns is not None else None,
            "daly_s": advice.daly_ns / 1e9 if advice.daly_ns is not None else None,
            "least_s": advice.bounds.least_ns / 1e9,
            "most_s": advice.bounds.most_ns / 1e9,
            "sweep": [_point(point) for point in advice.points],
        },
        "advice": [_measured(one, setting) for one in advice.measured],
        "together": _measured(advice.together, setting) if advice.together is not None else None,
        "tried": [
            {**_change(one.change), "gain": _gain(one.gain, setting) if one.gain else None, "why": one.reason}
            for one in advice.tried
        ],
        "notes": advice.notes,
        "command": setting.command([]),
    }


def _point(point: Point) -> dict[str, Any]:
    return {"s": point.interval_ns / 1e9, "goodput": point.goodput, "half": point.half, "failed": point.failed}


def _change(change: Change) -> dict[str, Any]:
    return {key: getattr(change, key) for key in ("lever", "what", "today", "proposed")}


def _measured(one: Measured, setting: Setting) -> dict[str, Any]:
    return {
        "changes": [_change(change) for change in one.changes],
        "gain": _gain(one.gain, setting),
        "verdict": one.gain.verdict,
        "command": setting.command(_words(one)),
    }


def _gain(gain: Gain, setting: Setting) -> dict[str, Any]:
    """Return a gain as plain values; money is hours times the price."""
    money = None
    if setting.price is not None and gain.hours is not None:
        half = gain.hours.half
        money = Estimate(setting.price * gain.hours.mean, setting.price * half if half is not None else None)
    values = {key: getattr(gain, key) for key in ("goodput", "hours", "share", "better", "seeds", "failed")}
    return {**values, "still_failed": gain.still_failed, "money": money, "goodput_is_sure": is_sure(gain.goodput)}


def advice_plot(advice: Advice, setting: Setting) -> str:
    """Return the plot of goodput over the checkpoint interval as SVG. The sweep must have been played."""
    assert advice.best_ns is not None
    title = f"{setting.title}: goodput over the time between checkpoints of {advice.role}"
    return interval_plot(title, advice.points, advice.best_ns, setting.today_ns)


def advice_page(advice: Advice, setting: Setting) -> str:
    """Return the advice as one HTML file, with the plot in it if the checkpoint interval was swept."""
    plot = advice_plot(advice, setting) if advice.points else ""
    title = escape(one_line(f"{setting.title}: advice"))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{plot}"
        f"<pre>{escape(advice_text(advice, setting))}</pre>\n</body></html>\n"
    )


def runs_text(seeds: Sequence[int], mode: Mode, until_ns: int, faults: float) -> str:
    """Return in words what was simulated; `faults` are expected in each run."""
    long = format_duration(until_ns) if until_ns < 1000 * HOUR else f"{until_ns / (24 * HOUR):.0f}d"
    span = f"seeds {seeds[0]}:{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    text = f"{span} in {MODES[mode]} mode, each {long} at most, {faults:,.0f} faults expected up to then"
    if faults * len(seeds) >= FEW_FAULTS:
        return text
    rare = f"{faults * len(seeds):.2g} faults are expected in all runs together"
    return f"{text}\nwarning: {rare}, so this is advice for runs without any: try a higher --rate"
