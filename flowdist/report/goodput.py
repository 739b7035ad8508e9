"""Means over the seeds of macro simulations with confidence intervals, and the best checkpoint interval by theory.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from flowdist.graph import format_duration
from flowdist.report.table import table

# Two-sided 95 % quantiles of Student's t, by degrees of freedom; beyond these the normal distribution is close enough.
T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
T_95 += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
NORMAL_95 = 1.960


class Estimate(NamedTuple):
    """Mean of independent values; `half` is half the width of its 95 % confidence interval, None for a single value."""

    mean: float
    half: float | None


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, one for each seed, with its confidence interval by Student's t.

    `values` has at least one value.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    t = T_95[n - 2] if n - 2 < len(T_95) else NORMAL_95
    return Estimate(mean, t * deviation / math.sqrt(n))


def young_ns(checkpoint_ns: float, between_ns: float) -> float:
    """Return the best time of work between two checkpoints by Young's formula, in nanoseconds.

    Args:
        checkpoint_ns: The time that a checkpoint takes.
        between_ns: The mean time between failures.
    """
    return math.sqrt(2 * checkpoint_ns * between_ns)


def daly_ns(checkpoint_ns: float, between_ns: float) -> float:
    """Return the best time of work between two checkpoints by Daly's formula, in nanoseconds.

    The formula also holds for checkpoints that take long compared to `between_ns`. From twice that on, the result is
    `between_ns`.

    Args:
        checkpoint_ns: The time that a checkpoint takes.
        between_ns: The mean time between failures.
    """
    if checkpoint_ns >= 2 * between_ns:
        return between_ns
    x = checkpoint_ns / (2 * between_ns)
    return young_ns(checkpoint_ns, between_ns) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_ns


def macro_text(summary: dict[str, Any]) -> str:
    """Return the text of a macro simulation's results, averaged over its runs, for the terminal.

    Args:
        summary: The values that the simulation prints for --json.
    """
    many = len(summary["runs"])
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    lines = [f"{many} run{'s' * (many != 1)}: {outcomes}", ""]
    lines += _estimates(summary["estimates"])
    shares = {name: value for name, value in summary["time"].items() if value[0] >= 0.00005}
    lines += ["", "Where the time went, of all replicas", *_estimates(shares, shares)]
    if summary["causes"]:
        lines += ["", "Incidents per run, by cause", *_estimates(summary["causes"])]
    if any(":" in name for name in summary["faults_by_rate"]):
        lines += ["", "Faults per run, by cause", *_estimates(summary["faults_by_rate"])]
    reasons = dict.fromkeys(run["reason"] for run in summary["runs"] if run["outcome"] == "failed")
    lines += [f"\nfailed: {reason}" for reason in list(reasons)[:3]]
    lines += ["", *_advice(summary)]
    if summary["failures_per_cpu_s"]:
        lines.append(f"{summary['failures_per_cpu_s']:,.0f} failures a second of CPU")
    return "\n".join(lines) + "\n"


def _advice(summary: dict[str, Any]) -> list[str]:
    """Return a line that compares the checkpoint interval with the best by Daly; none without failures."""
    if summary["between_s"] is None:
        return []
    between = format_duration(max(1, round(summary["between_s"])) * 10**9)
    best, now = (format_duration(max(1, round(summary[key])) * 10**9) for key in ("daly_s", "checkpoint_every_s"))
    return [f"checkpoint every {now}; best by Daly's formula, with a restart every {between}: {best}"]


def _estimates(values: Mapping[str, Estimate], shares: Container[str] = ("goodput",)) -> list[str]:
    """Return a table of estimates by name; those named in `shares` are fractions and are shown in per cent."""
    rows: list[tuple[str, ...]] = [("", "mean", "+- (95 %)")]
    for name, value in values.items():
        texts = (f"{100 * x:.2f} %" if name in shares else f"{x:,.1f}" for x in value if x is not None)
        mean, half = (*texts, "-")[:2]
        rows.append((name, mean, half))
    return table(rows)
