"""`flowdist simulate`: a topology or a scenario in virtual time, with failures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
from click.core import ParameterSource

from flowdist.cli.shared.common import (
    load,
    print_json,
    problems_json,
    problems_of_job,
    show_problems,
    until_ns,
    verb,
    write,
    write_trace,
)
from flowdist.cli.shared.options import (
    FaultOptions,
    TopologyOptions,
    fault_options,
    fields_set,
    gathered,
    times_of,
    topology_options,
    workload_option,
)
from flowdist.cli.shared.simulated import ProgressLine, exit_code, simulated_summary
from flowdist.cli.simulate.campaign import Campaign, CampaignOptions, Demands, campaign_options, demand_options
from flowdist.cli.simulate.macro import MacroOptions, MacroRun, macro_options
from flowdist.errors import FlowdistError
from flowdist.faults.files import join_plans, plan_of_scenario
from flowdist.faults.grammar import NOTHING
from flowdist.faults.scenario import Scenario, check_expectations, load_scenario
from flowdist.graph import HOUR, format_duration
from flowdist.record.journal import FaultLine
from flowdist.report.record.page import timeline_page
from flowdist.report.record.summary import summary_text
from flowdist.report.record.timeline import timeline_of
from flowdist.report.record.trace import shown_lines, trace_lines
from flowdist.report.static.plan_faults import stranding
from flowdist.sim.checks.expectations import unmet
from flowdist.sim.checks.liveness import end_ns, late
from flowdist.sim.experiment.experiment import Experiment, of_topology
from flowdist.sim.experiment.play import play
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.result import unfired_texts
from flowdist.sim.workers.collectives import with_collective
from flowdist.sim.workers.start_ups import with_startup_spread
from flowdist.testing.sameness import difference, has_models, unlike_or

if TYPE_CHECKING:
    from flowdist.dsl.problems.problem import Problem
    from flowdist.dsl.read.fields import Arguments

# Options that do not go together: none is accepted and then ignored.
OF_ONE_RUN = ("--seed", "--startup-spread", "--workload", "--schedule", "--until", "--trace", "--html")
TRACE_LINES = 60  # lines of a long trace that are shown without --full
END_NS = 1000 * HOUR  # end of the run without faults with which results of models are compared
OF_CAMPAIGNS = ("--jobs", "--corpus", "--fail-fast", "--alike", "--cover")


class OneRunOptions(NamedTuple):
    """Options of one simulated run: what is drawn, when the run ends, and which files are written."""

    seed: int | None
    workload_file: str | None
    startup_spread: float | None
    schedule: int
    collective: str | None
    until: str | None
    trace_file: str | None
    html_file: str | None
    full: bool

    def words(self) -> list[str]:
        """Return the options that change the workload as words of a command line."""
        given = {"--workload": self.workload_file, "--startup-spread": self.startup_spread}
        given["--collective"] = self.collective
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]


class _Job(NamedTuple):
    """Topology of the command line as an experiment, its scenario if one is named, and warnings about all of it."""

    named: TopologyOptions
    scenario: Scenario | None
    experiment: Experiment
    problems: tuple[Problem, ...] = ()
    arguments: Arguments | None = None  # where the arguments of the topology stand


@verb("simulate")
@topology_options
@fault_options()
@gathered(
    "one",
    OneRunOptions,
    click.option("--seed", type=int, help="Seed of what is drawn, such as start-up times; 0 (default) draws nothing."),
    workload_option,
    click.option(
        "--startup-spread",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        help="Draw start-ups up to this share shorter or longer (default: 0.2); with 0 they are nominal.",
    ),
    click.option("--schedule", type=int, default=0, help="Choose another order of simultaneous events by a number."),
    click.option(
        "--collective",
        type=click.Choice(["wait", "fail", "hang"]),
        help="What the peers of a worker that dies do, if workload= does not say.",
    ),
    click.option("--until", metavar="TIME", help="Stop the simulation at this time: 10m."),
    click.option("--trace", "trace_file", type=click.Path(dir_okay=False), help="Write the trace, a journal."),
    click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Draw it, as flowdist timeline does."),
    click.option("--full", is_flag=True, help="Show all lines of a long trace."),
)
@campaign_options
@demand_options
@macro_options
def command(
    named: TopologyOptions,
    faults: FaultOptions,
    one: OneRunOptions,
    campaign: CampaignOptions,
    demands: Demands,
    mode: MacroOptions,
) -> None:
    """Run a topology, or a scenario (x.toml), in virtual time, with failures.

    The same controller and agents as in `flowdist run` make the decisions. Exit code 0 if the job succeeds, or meets
    the expectations of its scenario; 1 if it fails; 3 if an expectation or a property does not hold; 4 if the job had
    not ended at the time of --until.

    \b
    flowdist simulate --fail node2@30s/60s            one run, in which node2 is lost and returns
    flowdist simulate --explore 1000 --jobs 2         a thousand runs, each with faults that the job has to survive
    flowdist simulate --macro --rate node-kill=6.5e-3/node-day/4h --until 30d --seeds 1:20
    """
    _refuse_mixtures(is_scenario=_is_scenario(named))
    explores = not mode.is_macro and (campaign.explore is not None or campaign.seeds is not None)
    seeds = campaign.chosen() if explores else ()
    job = _read_job(named, faults, one)
    if explores:
        if job.experiment.plan != NOTHING:
            help = "leave the others out, or --explore"
            raise FlowdistError("--explore and --seeds draw their own faults", help=help)
        Campaign(job.experiment.graph, job.named, campaign, seeds, demands, one.full, one.collective).run()
    if mode.is_macro:
        _simulate_macro(job, faults, one, campaign, demands, mode)
    _simulate(job, one, demands)


def _refuse_mixtures(*, is_scenario: bool) -> None:
    """Refuse the first option that would change nothing beside the other options of the command line."""
    context, typed = click.get_current_context(), ParameterSource.COMMANDLINE
    options = context.command.params
    given = [each.opts[0] for each in options if context.get_parameter_source(each.name or "") is typed]
    if "--macro" in given:
        _refuse(given, (*OF_CAMPAIGNS, "--schedule", "--full"), "is not for --macro", "leave it out, or --macro")
        if "--seeds" in given:
            _refuse(given, ("--seed",), "does not go with --seeds", "leave out one of them")
        return
    _refuse(given, ("--cross-check",), "compares macro mode with this one", "write --macro --cross-check")
    if "--explore" in given or "--seeds" in given:
        if "--seeds" in given:
            _refuse(given, ("--explore",), "does not go with --seeds: 3 are the seeds 1:3", "leave out one of them")
        if is_scenario:
            message = "a scenario has its own faults, and a campaign draws them at random"
            raise FlowdistError(message, help="name the topology of the scenario")
        help = "give it to the command that shows a failure again"
        _refuse(given, OF_ONE_RUN, "is of one run; a campaign has many", help)
    else:
        _refuse(given, OF_CAMPAIGNS, "is of campaigns; here is one run", "add --explore 100, or --seeds 1:100")


def _refuse(given: Iterable[str], flags: Iterable[str], why: str, help: str) -> None:
    """Raise a FlowdistError for the first of the flags that is given; its message is the flag followed by `why`."""
    for flag in flags:
        if flag in given:
            raise FlowdistError(f"{flag} {why}", help=help)


def _is_scenario(named: TopologyOptions) -> bool:
    return named.target is not None and named.target.endswith(".toml")


def _read_job(named: TopologyOptions, faults: FaultOptions, one: OneRunOptions) -> _Job:
    """Compile the topology or scenario of the command line, which wins over the scenario; faults of both are joined."""
    scenario, plans, seed, until = None, [], one.seed, one.until
    if _is_scenario(named):
        path = Path(named.target or "")
        scenario = load_scenario(path)
        named = _from_scenario(path, scenario, named)
        plans.append(plan_of_scenario(path))
        seed = scenario.seed if seed is None else seed
        until = until or scenario.until
    loaded = load(named)
    times = times_of(one.workload_file, loaded.graph) if one.workload_file is not None else None
    experiment = of_topology(loaded.graph, NOTHING, times, keep=fields_set(named.sets))
    graph = with_startup_spread(with_collective(experiment.graph, one.collective or ""), one.startup_spread)
    if scenario is not None:
        check_expectations(path, scenario.expect, graph)
    plan = join_plans([*plans, faults.plan()])
    more = problems_of_job(loaded, graph, plan)
    if not named.as_json:
        show_problems(more)
    problems, end_ns = (*loaded.warnings, *more), until_ns(until, "30s, 1m30s or 2h")
    experiment = experiment._replace(graph=graph, plan=plan, until_ns=end_ns, seed=seed or 0, schedule=one.schedule)
    return _Job(named, scenario, experiment, problems, loaded.arguments)


def _from_scenario(path: Path, scenario: Scenario, named: TopologyOptions) -> TopologyOptions:
    """Return the options of the scenario's topology; those of the command line come last and win."""
    return TopologyOptions(
        target=str(path.parent / scenario.topology),
        params=(*(f"{name}={value}" for name, value in scenario.params.items()), *named.params),
        sets=(*(f"{name}={value}" for name, value in _flat(scenario.set)), *named.sets),
        nodes=named.nodes or (str(scenario.nodes) if scenario.nodes is not None else None),
        as_json=named.as_json,
    )


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return the entries of nested tables with dotted keys, as `trainer.replicas`, and lists with commas, for --set."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", text)]
    return pairs


def _simulate_macro(
    job: _Job, faults: FaultOptions, one: OneRunOptions, campaign: CampaignOptions, demands: Demands, mode: MacroOptions
) -> None:
    """Run macro mode, or its comparison with the protocol mode, and exit."""
    refused = {
        "a scenario's expectations are": job.scenario is not None,
        "--html is": one.html_file is not None,
        "--explore is": campaign.explore is not None,
        "properties and bounds are": demands != Demands(),
    }
    for name, is_given in refused.items():
        if is_given:
            raise FlowdistError(f"{name} not for --macro", help="leave it out, or --macro")
    seeds = campaign.chosen() if campaign.seeds is not None else [job.experiment.seed]
    check_faults(job.experiment.plan, job.experiment.graph)
    words = [*one.words(), *faults.words()]
    words = [*([job.named.target] if job.named.target is not None else []), *job.named.words(), *words]
    run = MacroRun(job.experiment, seeds, job.named.as_json, words, job.arguments)
    if mode.cross_check:
        run.cross_check()
    run.run(Path(one.trace_file) if one.trace_file is not None else None)


def _simulate(job: _Job, one: OneRunOptions, demands: Demands) -> None:
    """Run the simulation, write its files, show it, and exit with its exit code."""
    experiment, plan = job.experiment, job.experiment.plan
    check_faults(plan, experiment.graph)
    if job.scenario is None and not job.named.as_json and (note := stranding(plan, experiment.graph)):
        click.echo(f"warning: {note}", err=True)
    properties = demands.properties(job.named)
    with ProgressLine(quiet=job.named.as_json) as progress:
        if experiment.until_ns is None and demands.live:
            usual = play(Experiment(experiment.graph, until_ns=END_NS))
            experiment = experiment._replace(until_ns=end_ns(experiment.graph, plan, usual.lasted_ns))
        result: Any = play(experiment, tell=progress.tell, properties=properties).exact
    write_trace(one.trace_file, result.lines)
    if one.html_file is not None:
        page = timeline_page(timeline_of(result.lines[0], result.lines[1:]))
        write(Path(one.html_file), page.encode())
    broken = [f"{which}: {text}" for which, text in demands.bounds.broken(result)]
    if demands.live:
        stuck, waiting = late(result, plan), ", ".join(result.waiting)
        if stuck is not None:
            broken.append(f"liveness: {stuck[1]}{f'; waiting for {waiting}' if waiting else ''}")
        elif result.job.outcome is None:
            broken.append(f"liveness: not done in time; waiting for {waiting}")
    _show_result(result, job, one, broken)


def _show_result(result: Any, job: _Job, one: OneRunOptions, broken: Sequence[str]) -> NoReturn:
    """Show a simulated run, and exit; `broken` are demands that do not hold, in words.

    A scenario whose expectations hold exits with 0, whether the job failed or not, and whether it ended in time.
    """
    scenario, cut, as_json = job.scenario, one.until, job.named.as_json
    wrong = [*(unmet(scenario.expect, result) if scenario is not None else []), *broken]
    summary = _summary(result, wrong)
    if as_json:
        print_json("simulation", **summary, problems=problems_json(job.problems))
    else:
        _print(result, scenario, summary, one.full)
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

    If they differ, the run without faults is repeated, to see whether the models do the same twice.
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
