"""Text of an explanation (`flowdist explain`), for the terminal."""

from __future__ import annotations

from typing import Any

from flowdist.graph import format_duration
from flowdist.report.table import table

_OUTCOMES = {
    "fail": "the job fails: everything is stopped, and nothing starts again",
    "restart": "the job continues",
    "ignore": "the failure is ignored, and the job continues",
    "refused": "the drain is refused, and nothing changes",
    "takeover": "another controller takes over, and the job continues",
    "nothing": "nothing runs there, and the job continues",
}


def explanation_text(told: dict[str, Any]) -> str:
    """Return the text for the terminal of an explanation, section by section; empty sections are left out.

    Args:
        told: What `explanation_of` returned.
    """
    restarts = [e | {"because": e["because"] + (f", {e['if']}" if e["if"] else "")} for e in told["restarts"]]
    verdicts = [entry | {"who": entry["role"]} for entry in told["verdicts"]]
    untouched = [*told["spared"], *(entry for entry in told["goes_on"] if not entry["told"])]
    sections = [
        ("Why", _rows(verdicts)),
        ("What is ended", _rows(told["ended"])),
        ("What restarts", _rows(restarts)),
        ("What is ended with it", _rows(told["stuck"])),
        ("In which order", _order(told)),
        ("What is charged", _charge(told)),
        ("What reconnects", _rows([entry for entry in told["goes_on"] if entry["told"]])),
        ("What is not affected", _rows(untouched)),
        ("Notes", [f"  {note}" for note in told["notes"]]),
    ]
    lines = [f"{told['how']}: {_OUTCOMES[told['outcome']]}"]
    for title, body in sections:
        lines += ["", title, *body] if body else []
    return "\n".join(lines) + "\n"


def _rows(entries: list[dict[str, Any]]) -> list[str]:
    """Return a table of the entries: which role or replicas, and why. Without entries there is no line."""
    return table([(entry["who"], entry["because"]) for entry in entries]) if entries else []


def _charge(told: dict[str, Any]) -> list[str]:
    """Return what the failure is charged to; no line if nothing restarts."""
    if not told["restarts"]:
        return []
    words = told["charged"]["words"] if told["charged"] is not None else ["nothing: the restart is not counted"]
    return [f"  {text}" for text in words]


def _order(told: dict[str, Any]) -> list[str]:
    """Return the order of stops and starts; no line if there are none."""
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
