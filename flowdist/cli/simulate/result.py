"""Result of one simulated run, as the terminal or --json shows it, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flowdist.cli.shared.common import print_json, problems_json
from flowdist.cli.shared.simulated import exit_code, simulated_summary
from flowdist.faults.scenario import Scenario
from flowdist.graph import HOUR, format_duration
from flowdist.record.journal import FaultLine
from flowdist.report.record.summary import summary_text
from flowdist.report.record.trace import shown_lines, trace_lines
from flowdist.sim.checks.expectations import unmet
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.play import play
from flowdist.sim.faults.unfired import unfired_texts
from flowdist.testing.sameness import difference, has_models, unlike_or

if TYPE_CHECKING:
    from flowdist.dsl.problems.problem import Problem

TRACE_LINES = 60  # lines of a long trace that are shown without --full
END_NS = 1000 * HOUR  # end of the run without faults with which results of models are compared


def show_result(
    result: Any,
    scenario: Scenario | None,
    cut: str | None,
    as_json: bool,
    full: bool,
    broken: Sequence[str],
    problems: Sequence[Problem] = (),
) -> NoReturn:
    """Show a simulated run, and exit.

    The exit code is 0, 1 if the job failed, 3 if an expectation or a property does not hold, or 4 if the job had not
    ended when the simulation did. A scenario whose expectations hold exits with 0, whether the job failed or not, and
    whether it ended before the time at which the scenario stops.

    Args:
        result: The result of the simulation.
        scenario: The scenario with its expectations; None for a topology.
        cut: The time of --until, as the user wrote it; None if the command line does not say it.
        as_json: Print the summary as JSON, and nothing else.
        full: Show all lines of a long trace.
        broken: Bounds and liveness demands that do not hold, in words.
        problems: Warnings about the topology and the faults, for the JSON.
    """
    wrong = [*(unmet(scenario.expect, result) if scenario is not None else []), *broken]
    summary = _summary(result, wrong)
    if as_json:
        print_json("simulation", **summary, problems=problems_json(problems))
    else:
        _print(result, scenario, summary, full)
        _print_wrong(result, scenario, summary)
    is_broken = bool(wrong) or summary["violation"] is not None
    is_cut = result.job.outcome is None and cut is not None and not is_broken
    if is_cut and not as_json:
        click.echo(f"the job had not ended at {cut} (--until): give it more time (exit code 4)", err=True)
    is_as_expected = scenario is not None and not is_broken and not is_cut
    sys.exit(0 if is_as_expected else exit_code(result.job.outcome, is_broken=is_broken))


def _summary(result: Any, wrong: list[str]) -> dict[str, Any]:
    """Return the summary that is shown; `wrong` are unmet expectations and broken demands, in words."""
    summary = simulated_summary(result)
    summary |= {"digest": result.digest, "waiting_for": result.waiting, "unmet": wrong, "seen": list(result.seen)}
    summary["violation"] = str(result.violation) if result.violation else _difference(result)
    if result.played.errors:
        summary["raised"] = [error._asdict() | {"replica": str(error.replica)} for error in result.played.errors]
    if result.by_rate:
        summary["faults_by_rate"] = dict(sorted(result.by_rate.items()))
    summary["unfired"] = [fault.spec for fault in result.unfired]
    return summary


def _print(result: Any, scenario: Scenario | None, summary: dict[str, Any], full: bool) -> None:
    """Print the trace, the summary and the digest of the run."""
    if scenario is not None:
        click.echo(f"{scenario.title}\n")
    for line in trace_lines(result.lines) if full else shown_lines(result.lines, TRACE_LINES):
        click.echo(line)
    click.echo("\n" + summary_text(summary), nl=False)
    if any(":" in name for name in result.by_rate):
        counts = ", ".join(f"{count} {name}" for name, count in summary["faults_by_rate"].items())
        click.echo(f"Faults, by cause: {counts}")
    click.echo(f"\ndigest {result.digest}")


def _print_wrong(result: Any, scenario: Scenario | None, summary: dict[str, Any]) -> None:
    """Print exceptions of user code, violations, unfired faults and unmet expectations on stderr."""
    if result.played.errors:
        first = result.played.errors[0]
        where = f", at {first.place}" if first.place else ""
        after = format_duration(first.at_ns)
        click.echo(f"\nuser code raised first in {first.replica}, after {after}{where}:", err=True)
        click.echo(first.text or first.line, err=True)
    if summary["violation"] is not None:
        click.echo(f"\nviolated: {summary['violation']}", err=True)
    for text in unfired_texts(result) if scenario is None else ():
        click.echo(f"warning: {text}", err=True)
    for text in summary["unmet"]:
        click.echo(f"expectation not met: {text}", err=True)
    if scenario is not None and not summary["unmet"] and summary["violation"] is None:
        click.echo("all expectations hold")


def _difference(result: Any) -> str | None:
    """Return how the results of the user's models differ from those of a run without faults; None if they do not.

    Only a job that has succeeded with models and faults is compared. If it differs, the run without faults is repeated,
    to see whether the models do the same twice.
    """
    if result.job.outcome != "succeeded" or not has_models(result.job.graph):
        return None
    if not any(isinstance(line, FaultLine) for line in result.lines):
        return None
    undisturbed = Experiment(result.lines[0].graph, until_ns=END_NS, seed=result.lines[0].seed)
    nominal = play(undisturbed).exact
    broken = difference(nominal, result) if nominal.job.outcome == "succeeded" else None
    if broken is None:
        return None
    broken = unlike_or(broken, nominal, play(undisturbed).exact)
    return f"{broken.property}: {broken.text}"
