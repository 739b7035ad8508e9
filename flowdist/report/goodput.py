"""Means over the seeds of simulations with confidence intervals, and the best checkpoint interval by theory.

Most runs of a short or small job have no failure, and Student's t takes the few others for outliers: intervals of ten
runs with 0.14 failures each cover the mean in 71 of 100 cases. So without `EVENTS_MIN` failures of each rate in all
runs together there is no interval, since a rate that has hit once or never may cost more than all others. With them,
it is wider than that of t by as much as the upper limit of a Poisson count is further away than the normal one, for
half as many failures, since what each of them costs varies as well. `tests/report/test_coverage.py` measures the
cover; it is less where one failure in ten of a rate costs ten times as much as the others.

Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974; Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flowdist.graph import format_duration
from flowdist.text.printable import table

# Two-sided 95 % quantiles of Student's t, by degrees of freedom; beyond these `_t_95` expands that of the normal.
T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131]
T_95 += [2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042]
NORMAL_95 = 1.960
EVENTS_MIN = 10  # failures of each rate in all runs together: with fewer there is no interval
EVENTS_LIKELY = 16  # with so many expected, EVENTS_MIN come with a chance of 95 %


class Estimate(NamedTuple):
    """Mean of independent values; `half` is half the width of its 95 % confidence interval, None if there is none."""

    mean: float
    half: float | None


class Rarest(NamedTuple):
    """The rate whose failures are the fewest in all runs together: its name, and their number."""

    rate: str
    hits: int


def rarest_of(rates: Iterable[str], counts: Iterable[Mapping[str, int]]) -> Rarest | None:
    """Return the rate that has hit least often in all runs together; None: there are no rates.

    `rates` names those that have never hit, too; `counts` says for each run how often each rate has hit.
    """
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return min((Rarest(name, total[name]) for name in rates), key=lambda one: one.hits, default=None)


def estimate(values: Sequence[float], rarest: Rarest | None = None) -> Estimate:
    """Return the mean of independent values, one for each seed, with a 95 % confidence interval, if there is one.

    There is none for a single value, with too few failures, and for two values that are equal: they show no spread.
    `rarest` is the rate that has hit least often in all seeds; None: nothing is rare, as the runs draw no faults.
    """
    n = len(values)
    mean = math.fsum(values) / n
    events = rarest.hits if rarest is not None else None
    if n < 2 or (events is not None and events < EVENTS_MIN):
        return Estimate(mean, None)
    if events is not None and n == 2 and values[0] == values[1]:
        return Estimate(mean, None)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    wider = _poisson_excess(events / 2) if events is not None else 1.0
    return Estimate(mean, wider * _t_95(n - 1) * deviation / math.sqrt(n))


def seeds_needed(seeds: int, rarest: Rarest | None) -> int | None:
    """Return about how many seeds have enough failures for intervals, by those so far; None: these have."""
    if rarest is None or rarest.hits >= EVENTS_MIN:
        return None
    return math.ceil(seeds * EVENTS_LIKELY / max(1, rarest.hits))


def needed_text(seeds: int, rarest: Rarest | None) -> str:
    """Return why estimates have no interval, and how many seeds it takes, in words; empty if these are enough."""
    needed = seeds_needed(seeds, rarest)
    if needed is None or rarest is None:
        return ""
    faults = f"{rarest.hits or 'no'} fault{'s' * (rarest.hits != 1)} of {rarest.rate}"
    hit = f"{faults} hit in {seeds} run{'s' * (seeds != 1)}"
    about = "at least about" if not rarest.hits else "about"
    return f"no 95 % intervals: {hit}, too few; {about} {needed} seeds are needed, or a longer time"


def _t_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t (Abramowitz and Stegun, 26.7.5, from 31 degrees on)."""
    z = NORMAL_95
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _poisson_excess(count: float) -> float:
    """Return how much further away the upper limit of `poisson_95` is from a count than 1.96 deviations."""
    return (poisson_95(count)[1] - count) / (NORMAL_95 * math.sqrt(count))


def poisson_95(count: float) -> tuple[float, float]:
    """Return the limits of the 95 % confidence interval of a Poisson mean, from one count, which need not be whole.

    The exact limits are quantiles of chi-squared (Garwood, "Fiducial limits for the Poisson distribution", Biometrika
    28, 1936), approximated as in Wilson and Hilferty, "The distribution of chi-square", PNAS 17, 1931.
    """
    above = count + 1
    high = above * (1 - 1 / (9 * above) + NORMAL_95 / (3 * math.sqrt(above))) ** 3
    low = count * (1 - 1 / (9 * count) - NORMAL_95 / (3 * math.sqrt(count))) ** 3 if count else 0.0
    return max(0.0, low), high


def young_ns(checkpoint_ns: float, between_ns: float) -> float:
    """Return the best work time (ns) between two checkpoints by Young, by their cost and the time between failures."""
    return math.sqrt(2 * checkpoint_ns * between_ns)


def daly_ns(checkpoint_ns: float, between_ns: float) -> float:
    """Return the best time of work (ns) between two checkpoints by Daly; the arguments are those of `young_ns`.

    The formula also holds for checkpoints that take long compared to `between_ns`. From twice that on, the result is
    `between_ns`.
    """
    if checkpoint_ns >= 2 * between_ns:
        return between_ns
    x = checkpoint_ns / (2 * between_ns)
    return young_ns(checkpoint_ns, between_ns) * (1 + math.sqrt(x) / 3 + x / 9) - checkpoint_ns


def macro_text(summary: dict[str, Any]) -> str:
    """Return the text of a macro simulation's results (the values of --json), averaged over its runs."""
    many = len(summary["runs"])
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in summary["outcomes"].items())
    lines = [f"{many} run{'s' * (many != 1)}: {outcomes}", ""]
    lines += _estimates(summary["estimates"])
    if summary["no_interval"]:
        lines.append(summary["no_interval"])
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
