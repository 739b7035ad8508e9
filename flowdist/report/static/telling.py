"""An explanation in words, for the terminal."""

from __future__ import annotations

from typing import Any

from flowdist.graph import format_duration
from flowdist.report.table import table

_OUTCOMES = {
    "fail": "the job fails: everything is stopped, and nothing is started again",
    "restart": "the job goes on",
    "ignore": "that is ignored, and the job goes on",
    "refused": "that is refused, and nothing changes",
    "takeover": "another takes over, and the job goes on",
    "nothing": "nothing runs there, the job goes on",
}


def explanation_text(told: dict[str, Any]) -> str:
    """What `explanation_of` found."""
    lines = [f"{told['how']}: {_OUTCOMES[told['outcome']]}"]
    lines += _section("Why", [(entry["role"], entry["because"]) for entry in told["verdicts"]])
    lines += _section("What is ended", [(entry["who"], entry["because"]) for entry in told["ended"]])
    rows: list[tuple[str, ...]] = [
        (e["who"], e["because"] + (f", {e['if']}" if e["if"] else "")) for e in told["restarts"]
    ]
    lines += _section("What restarts", rows)
    lines += _section("What is ended with it", [(entry["who"], entry["because"]) for entry in told["stuck"]])
    if told["stops"] or told["starts"]:
        lines += ["", "In which order", *_order(told)]
    if told["restarts"]:
        words = told["charged"]["words"] if told["charged"] is not None else ["nobody's: it is not counted"]
        lines += ["", "At whose cost", *(f"  {text}" for text in words)]
    lines += _section("Who reconnects", [(e["who"], e["because"]) for e in told["goes_on"] if e["told"]])
    untouched = [*told["spared"], *(entry for entry in told["goes_on"] if not entry["told"])]
    lines += _section("Who is not touched", [(entry["who"], entry["because"]) for entry in untouched])
    if told["notes"]:
        lines += ["", "Besides", *(f"  {note}" for note in told["notes"])]
    return "\n".join(lines) + "\n"


def _section(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    return ["", title, *table(rows)] if rows else []


def _order(told: dict[str, Any]) -> list[str]:
    layers = told["stops"]
    lines = []
    if layers:
        when = "each world once it has left its step" if told["announced"] else "all at once"
        lines.append(f"  stopped, {when}, dependents first:")
        for number, layer in enumerate(layers, 1):
            names = ", ".join(f"{e['who']} (SIGKILL after {format_duration(round(e['grace_s'] * 1e9))})" for e in layer)
            lines.append(f"    {number}. {names}")
    if told["starts"]:
        wait = ", and the back-off is over" if told["charged"] is not None else ""
        lines.append(f"  started, when all of it is gone{wait}:")
        for number, wave in enumerate(told["starts"], 1):
            names = ", ".join(e["who"] + (f" (after {', '.join(e['after'])})" if e["after"] else "") for e in wave)
            lines.append(f"    {number}. {names}")
    return lines
