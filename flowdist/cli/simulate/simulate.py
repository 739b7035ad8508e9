"""`flowdist simulate`: a topology or a scenario in virtual time, with failures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flowdist.cli.shared.common import Named, guarded, load, print_json, topology_options, write
from flowdist.cli.simulate.demands import Demands, demand_options
from flowdist.cli.simulate.explore import explore, read_exploration
from flowdist.cli.simulate.macro import MacroWanted, macro
from flowdist.cli.simulate.patience import Patience
from flowdist.cli.simulate.simulated import simulated_summary
from flowdist.cli.simulate.together import refuse_apart
from flowdist.errors import FlowdistError
from flowdist.faults.files import join_plans, parse_plan, plan_of_scenario
from flowdist.faults.grammar import NOTHING
from flowdist.faults.scenario import Scenario, check_expectations, load_scenario
from flowdist.graph import HOUR, format_duration, parse_duration

TRACE_LINES = 60
PATIENCE_NS = 1000 * HOUR


@click.command(name="simulate")
@topology_options
@click.option("--fail", "fails", multiple=True, metavar="FAULT", help="node2@30s, trainer/0@step=trainer,500:exit=3")
@click.option("--scale", "scales", multiple=True, metavar="ROLE=N@TIME", help="Scale a role: trainer=4@60s.")
@click.option("--add", "adds", multiple=True, metavar="NODE@TIME", help="A node joins: node5@90s.")
@click.option("--drain", "drains", multiple=True, metavar="NODE@TIME", help="Drain a node: node1@2m.")
@click.option("--rate", "rates", multiple=True, metavar="RATE", help="Faults at random: node-kill=6.5e-3/node-day/15m.")
@click.option("--faults", "files", multiple=True, metavar="FILE", help="Faults from a file, one a line, or TOML.")
@click.option("--seed", type=int, help="0 (default) is nominal; others spread start-up times.")
@click.option(
    "--schedule", type=int, default=0, help="Another order of what happens at the same time, for each number."
)
@click.option(
    "--collective",
    type=click.Choice(["wait", "fail", "hang"]),
    help="What the peers of a worker that dies do, where workload= does not say.",
)
@click.option("--until", metavar="TIME", help="Stop the clock there: 10m.")
@click.option(
    "--trace", "trace_file", type=click.Path(dir_okay=False), help="Write the trace, in the journal's format."
)
@click.option("--explore", "count", type=click.IntRange(min=1), metavar="N", help="Try N seeds of random faults.")
@click.option("--seeds", metavar="A[:B]", help="Try these seeds of random faults, exactly.")
@click.option("--jobs", type=click.IntRange(min=1), default=1, help="Processes to explore with.")
@click.option("--corpus", metavar="FILE", help="Keep seeds that fail there, and try them first.")
@click.option("--fail-fast", is_flag=True, help="Stop exploring at the first failure.")
@click.option("--cover", is_flag=True, help="A phase of the job that no fault hit is a failure, too.")
@demand_options
@click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Draw it, as flowdist timeline does.")
@click.option("--macro", "is_macro", is_flag=True, help="From change to change: weeks of a large gang in seconds.")
@click.option("--cross-check", is_flag=True, help="With --macro: the same faults in both modes, and the difference.")
@click.option("--full", is_flag=True, help="Show all of a long trace.")
@guarded
def command(
    named: Named,
    demands: Demands,
    fails: tuple[str, ...],
    scales: tuple[str, ...],
    adds: tuple[str, ...],
    drains: tuple[str, ...],
    rates: tuple[str, ...],
    files: tuple[str, ...],
    seed: int | None,
    schedule: int,
    collective: str | None,
    until: str | None,
    trace_file: str | None,
    html_file: str | None,
    full: bool,
    count: int | None,
    seeds: str | None,
    jobs: int,
    corpus: str | None,
    fail_fast: bool,
    cover: bool,
    is_macro: bool,
    cross_check: bool,
) -> None:
    """Run a topology, or a scenario (x.toml), in virtual time, with failures.

    The same controller and agents as in `flowdist run` make the decisions. Exit code 0 if the job succeeds, or does
    what a scenario expects; 1 if it fails; 3 if an expectation or a property does not hold.

    \b
    flowdist simulate --fail node2@30s/60s            one run, with a node that dies and comes back
    flowdist simulate --explore 1000 --jobs 2         a thousand, each with faults that it has to survive
    flowdist simulate --macro --rate node-kill=6.5e-3/node-day/4h --until 30d --seeds 1:20
    """
    is_scenario = named.target is not None and named.target.endswith(".toml")
    refuse_apart(is_scenario=is_scenario)
    exploration = None if is_macro else read_exploration(count, seeds, jobs, corpus, fail_fast, cover)
    scenario, plans = None, []
    if named.target is not None and is_scenario:
        path = Path(named.target)
        scenario = load_scenario(path)
        named = _from_scenario(path, scenario, named)
        plans.append(plan_of_scenario(path))
        seed = scenario.seed if seed is None else seed
        until = until or scenario.until
    loaded = load(named)
    from flowdist.report.static.room import stranding
    from flowdist.sim.faults.injector import check_faults
    from flowdist.sim.simulation import Simulation, with_nodes
    from flowdist.sim.workers.collectives import with_collective  # the engine: only when something is simulated

    graph = with_collective(with_nodes(loaded.graph), collective or "")
    if scenario is not None:
        check_expectations(path, scenario.expect, graph)
    plan = join_plans([*plans, parse_plan(fails, scales, adds, drains, rates, files)])
    if exploration is not None:
        if plan != NOTHING:
            raise FlowdistError(
                "--explore and --seeds draw their own faults", help="leave the others out, or --explore"
            )
        explore(graph, named, exploration._replace(is_full=full, collective=collective), demands)
    if is_macro:
        chosen = read_exploration(None, seeds, 1, None, False, False) if seeds is not None else None
        wanted = chosen.seeds if chosen is not None else [seed or 0]
        trace = Path(trace_file) if trace_file is not None else None
        _refuse_in_macro(
            scenario=scenario is not None, html=html_file is not None, explore=count is not None, demands=demands.any
        )
        macro(graph, plan, named, MacroWanted(wanted, _until_ns(until), cross_check, trace))
    check_faults(plan, graph)
    if scenario is None and not named.as_json and (note := stranding(plan, graph)):
        click.echo(f"warning: {note}", err=True)
    properties = demands.properties(named)
    with Patience(quiet=named.as_json) as patience:
        end = _until_ns(until) or (_patience_ns(graph, plan) if demands.live else None)
        options: dict[str, Any] = {"seed": seed or 0, "schedule": schedule, "properties": properties}
        result = Simulation(graph, plan, checks="paced", tell=patience.tell, **options).run(end)
    if trace_file is not None:
        from flowdist.record.journal import encode_line

        write(Path(trace_file), b"".join(encode_line(line) for line in result.lines))
    if html_file is not None:
        _draw(result, Path(html_file))
    wrong = [f"{which}: {text}" for which, text in demands.bounds.broken(result)]
    wrong += _stuck(result, plan) if demands.live else []
    _show(result, scenario, named.as_json, full, wrong)


def _patience_ns(graph: Any, plan: Any) -> int:
    from flowdist.graph import HOUR
    from flowdist.sim.checks.liveness import end_ns
    from flowdist.sim.simulation import Simulation

    return end_ns(graph, plan, Simulation(graph, checks="paced").run(1000 * HOUR).now)


def _stuck(result: Any, plan: Any) -> list[str]:
    from flowdist.sim.checks.liveness import late

    stuck = late(result, plan)
    waiting = ", ".join(result.waiting)
    if stuck is not None:
        return [f"liveness: {stuck[1]}{f'; waiting for {waiting}' if waiting else ''}"]
    return [] if result.job.outcome is not None else [f"liveness: not done in time; waiting for {waiting}"]


def _refuse_in_macro(**given: bool) -> None:
    names = {"scenario": "a scenario's expectations are", "html": "--html is", "explore": "--explore is"}
    names["demands"] = "properties and bounds are"
    for name, is_given in given.items():
        if is_given:
            raise FlowdistError(f"{names[name]} not for --macro", help="leave it out, or --macro")


def _from_scenario(path: Path, scenario: Scenario, named: Named) -> Named:
    """The command line wins over the file: it comes last."""
    return Named(
        target=str(path.parent / scenario.topology),
        params=(*(f"{name}={value}" for name, value in scenario.params.items()), *named.params),
        sets=(*(f"{name}={value}" for name, value in _flat(scenario.set)), *named.sets),
        nodes=named.nodes or (str(scenario.nodes) if scenario.nodes is not None else None),
        as_json=named.as_json,
    )


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """`{"trainer": {"replicas": "1:2"}}` and `{"trainer.replicas": "1:2"}` say the same."""
    pairs: list[tuple[str, Any]] = []
    for key, value in table.items():
        text = ",".join(map(str, value)) if isinstance(value, list) else value
        pairs += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", text)]
    return pairs


def _draw(result: Any, path: Path) -> None:
    from flowdist.report.record.page import timeline_page
    from flowdist.report.record.timeline import timeline_of

    write(path, timeline_page(timeline_of(result.lines[0], result.lines[1:])).encode())


def _until_ns(until: str | None) -> int | None:
    if until is None:
        return None
    try:
        ns = parse_duration(until)
    except ValueError:
        raise FlowdistError(f"--until {until}: no duration", help="write 30s, 1m30s or 2h") from None
    if not ns:
        raise FlowdistError(f"--until {until}: that is before anything happens", help="write 30s, 1m30s or 2h")
    return ns


def _show(result: Any, scenario: Scenario | None, as_json: bool, full: bool, broken: list[str]) -> None:
    from flowdist.report.record.summary import summary_text
    from flowdist.report.record.trace import shown_lines, trace_lines
    from flowdist.sim.checks.expectations import unmet
    from flowdist.sim.faults.unfired import unfired_texts

    summary = simulated_summary(result)
    wrong_result = _changed(result)
    wrong = (unmet(scenario.expect, result) if scenario is not None else []) + broken
    summary |= {"digest": result.digest, "waiting_for": result.waiting, "unmet": wrong, "seen": list(result.seen)}
    summary["violation"] = str(result.violation) if result.violation else wrong_result
    if result.played.errors:
        summary["raised"] = [error._asdict() | {"replica": str(error.replica)} for error in result.played.errors]
    summary["unfired"] = [fault.spec for fault in result.unfired]
    if as_json:
        print_json("simulation", **summary)
    else:
        if scenario is not None:
            click.echo(f"{scenario.title}\n")
        for line in trace_lines(result.lines) if full else shown_lines(result.lines, TRACE_LINES):
            click.echo(line)
        click.echo("\n" + summary_text(summary), nl=False)
        click.echo(f"\ndigest {result.digest}")
        if result.played.errors:
            first = result.played.errors[0]
            click.echo(f"\nuser code raised first in {first.replica}, after {format_duration(first.at_ns)}:", err=True)
            click.echo(first.text or first.line, err=True)
        if summary["violation"] is not None:
            click.echo(f"\nviolated: {summary['violation']}", err=True)
        for text in unfired_texts(result) if scenario is None else ():
            click.echo(f"warning: {text}", err=True)
        for text in wrong:
            click.echo(f"expectation not met: {text}", err=True)
        if scenario is not None and not wrong and summary["violation"] is None:
            click.echo("all expectations hold")
    sys.exit(_exit_code(result, scenario, bool(wrong or summary["violation"])))


def _changed(result: Any) -> str | None:
    """What user code did otherwise than without faults, where roles have models and the job succeeded."""
    from flowdist.record.journal import FaultLine
    from flowdist.sim.simulation import Simulation
    from flowdist.testing.sameness import difference, has_models

    if result.job.outcome != "succeeded" or not has_models(result.job.graph):
        return None
    if not any(isinstance(line, FaultLine) for line in result.lines):
        return None
    header = result.lines[0]
    truth = Simulation(header.graph, seed=header.seed, checks="paced").run(PATIENCE_NS)
    broken = difference(truth, result) if truth.job.outcome == "succeeded" else None
    return f"{broken.property}: {broken.text}" if broken is not None else None


def _exit_code(result: Any, scenario: Scenario | None, is_violated: bool) -> int:
    if is_violated or result.violation is not None:
        return 3
    return 1 if result.job.outcome == "failed" and scenario is None else 0
