"""`flowdist simulate`: a topology or a scenario in virtual time, with failures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from flowdist.cli.shared.common import load, show_problems, until_ns, verb, write, write_trace
from flowdist.cli.shared.job_problems import problems_of_job
from flowdist.cli.shared.options import FaultOptions, TopologyOptions, fault_options, gathered, topology_options
from flowdist.cli.shared.simulated import ProgressLine
from flowdist.cli.shared.workloads import fields_set, times_of, workload_option
from flowdist.cli.simulate.campaign import Campaign, CampaignOptions, campaign_options
from flowdist.cli.simulate.demands import Demands, demand_options
from flowdist.cli.simulate.macro import MacroOptions, MacroRun, macro_options
from flowdist.cli.simulate.result import END_NS, show_result
from flowdist.errors import FlowdistError
from flowdist.faults.files import join_plans, plan_of_scenario
from flowdist.faults.grammar import NOTHING, Plan
from flowdist.faults.scenario import Scenario, check_expectations, load_scenario
from flowdist.report.record.page import timeline_page
from flowdist.report.record.timeline import timeline_of
from flowdist.report.static.room import stranding
from flowdist.sim.checks.liveness import end_ns, late
from flowdist.sim.experiment.experiment import Experiment, of_topology
from flowdist.sim.experiment.play import play
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.workers.collectives import with_collective
from flowdist.sim.workers.start_ups import with_startup_spread

if TYPE_CHECKING:
    from flowdist.dsl.check.arguments import Arguments
    from flowdist.dsl.problems.problem import Problem

# Options that do not go together: none is accepted and then ignored.
OF_ONE_RUN = ("--seed", "--startup-spread", "--workload", "--schedule", "--until", "--trace", "--html")
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
    """Topology of the command line as an experiment, and the scenario if one is named.

    `problems` are the warnings about all of that.
    """

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
    """Refuse the first option that would change nothing beside the other options of the command line.

    Raises:
        FlowdistError: There is such an option.
    """
    given = _given()
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


def _given() -> list[str]:
    """Return the flags of the options that stand on the command line."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    ]


def _refuse(given: Iterable[str], flags: Iterable[str], why: str, help: str) -> None:
    """Raise a FlowdistError for the first of the flags that is given; its message is the flag followed by `why`."""
    for flag in flags:
        if flag in given:
            raise FlowdistError(f"{flag} {why}", help=help)


def _is_scenario(named: TopologyOptions) -> bool:
    return named.target is not None and named.target.endswith(".toml")


def _read_job(named: TopologyOptions, faults: FaultOptions, one: OneRunOptions) -> _Job:
    """Compile the topology or scenario of the command line, and read its faults.

    Where both say something, the command line wins over the scenario; faults of both are joined.
    """
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
    """Return the entries of nested tables with dotted keys: {"trainer": {"replicas": 2}} as "trainer.replicas".

    Lists become texts with commas, as --set takes them.
    """
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", text)]
    return pairs


def _simulate_macro(
    job: _Job,
    faults: FaultOptions,
    one: OneRunOptions,
    campaign: CampaignOptions,
    demands: Demands,
    mode: MacroOptions,
) -> None:
    """Run macro mode, or its comparison with the protocol mode, and exit.

    Raises:
        FlowdistError: An option or a fault is not for macro mode.
    """
    refused = {
        "a scenario's expectations are": job.scenario is not None,
        "--html is": one.html_file is not None,
        "--explore is": campaign.explore is not None,
        "properties and bounds are": demands.any,
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
        result = play(experiment, tell=progress.tell, properties=properties).exact
    write_trace(one.trace_file, result.lines)
    if one.html_file is not None:
        _draw(result, Path(one.html_file))
    broken = [f"{which}: {text}" for which, text in demands.bounds.broken(result)]
    broken += _stuck(result, plan) if demands.live else []
    show_result(result, job.scenario, one.until, job.named.as_json, one.full, broken, job.problems)


def _stuck(result: Any, plan: Plan) -> list[str]:
    """Return in words why the run violates liveness; empty if it does not."""
    stuck = late(result, plan)
    waiting = ", ".join(result.waiting)
    if stuck is not None:
        return [f"liveness: {stuck[1]}{f'; waiting for {waiting}' if waiting else ''}"]
    return [] if result.job.outcome is not None else [f"liveness: not done in time; waiting for {waiting}"]


def _draw(result: Any, path: Path) -> None:
    """Write the timeline of a simulation as an HTML page."""
    write(path, timeline_page(timeline_of(result.lines[0], result.lines[1:])).encode())
