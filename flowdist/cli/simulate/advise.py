"""`flowdist advise`: what to change in a topology so that failures cost less."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flowdist.advice.advise import Question, advise
from flowdist.advice.alternatives import LEVERS, Lever
from flowdist.advice.playing import budget_of, faults_per_ns, horizon_ns, leading_role, mode_of
from flowdist.advice.words import Setting, advice_page, advice_plot, advice_text, advice_values, runs_text
from flowdist.cli.shared.common import load, print_json, until_ns, verb, write
from flowdist.cli.shared.options import (
    FaultOptions,
    TopologyOptions,
    fault_options,
    fields_set,
    gathered,
    repeated,
    times_of,
    topology_options,
    workload_option,
)
from flowdist.cli.shared.runs import complete_run
from flowdist.cli.shared.simulated import ProgressLine
from flowdist.cli.simulate.campaign import CampaignOptions
from flowdist.errors import FlowdistError, did_you_mean
from flowdist.faults.files import join_plans, parse_plan
from flowdist.faults.grammar import NOTHING, Plan
from flowdist.graph import RoleGraph, format_duration
from flowdist.sim.experiment.experiment import Experiment, of_topology

if TYPE_CHECKING:
    from flowdist.advice.measured_rates import MeasuredRate

FEW = 20  # failures: a rate from fewer may be off by half and more
PRICE = re.compile(r"(\d+(?:\.\d+)?)(?:/(gpu|node)-hour)?")
NO_FAULTS = "advice needs failures: nothing goes wrong in this job"
NO_FAULTS_HELP = "write --rate node-kill=6.5e-3/node-day/15m, or --from RUN to measure the rates of a run"


class AdviceOptions(NamedTuple):
    """Options of the verb: where rates and times come from, what is tried and how often, and files to write."""

    records: tuple[str, ...]
    workload_file: str | None
    until: str | None
    seeds: str | None
    only: tuple[str, ...]
    price: str | None
    plot_file: str | None
    html_file: str | None


class _Price(NamedTuple):
    """Amount for an hour of a GPU or of a node. `of` is empty if the user did not say of which."""

    amount: float
    of: str

    def per_hour(self, job: Experiment) -> float:
        """Return the price of one hour that the advice counts: of a GPU, or of a node if the job has no GPUs."""
        if self.of == "gpu" and not job.gpus:
            message = f"--price {self.amount:g}/gpu-hour: the nodes of the job have no GPUs"
            raise FlowdistError(message, help=f"write --price {self.amount:g}/node-hour")
        if self.of == "node" and job.gpus:
            return self.amount * len(job.graph.cluster.nodes) / job.gpus
        return self.amount


class _Checked(NamedTuple):
    """Options that were read: the plan, the end of runs, the seeds and the levers, and the price; None: not given."""

    plan: Plan
    until_ns: int | None
    seeds: range | None
    levers: tuple[Lever, ...]
    price: _Price | None


@verb("advise")
@topology_options
@fault_options("rates", "files")
@gathered(
    "options",
    AdviceOptions,
    repeated(
        "--from",
        "records",
        metavar="RUN",
        shell_complete=complete_run,
        help="Measure the rates of failures in the journal of this run.",
    ),
    workload_option,
    click.option("--until", metavar="TIME", help="End each run at this time (default: after enough failures)."),
    click.option("--seeds", metavar="A[:B]", help="Seeds that measure the gains (default: as many as needed)."),
    repeated("--only", "only", metavar="LEVER", help="Try this lever alone: interval, minimum, spares, ..."),
    click.option("--price", metavar="PRICE", help="Price of an hour of a GPU: 2.5; or 20/node-hour."),
    click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Plot goodput over the interval: x.svg."),
    click.option("--html", "html_file", type=click.Path(dir_okay=False), help="Write the advice as a page, with plot."),
)
def command(named: TopologyOptions, faults: FaultOptions, options: AdviceOptions) -> None:
    """Say what to change in a topology so that failures cost less, how much that gains, and how sure it is.

    Simulates the job and alternatives with the same failures: other checkpoint intervals, minima, spare nodes, restart
    scopes, leases and heartbeats. Exit code 0, also if nothing is sure to gain anything.

    \b
    flowdist advise --rate node-kill=2/node-day/30m
    flowdist advise --from runs/a --workload workload.toml --price 2.5
    flowdist advise --rate node-kill=2/node-day/30m --only interval --plot interval.svg
    """
    checked = _read(faults, options)
    models = [f"{role.name}.simulate=none" for role in load(named).graph.roles if role.simulate]
    named = named._replace(sets=(*named.sets, *models))  # advice is about times alone
    job, has_nodes = _job(named, options)
    if not has_nodes:  # their number is left to `flowdist run`
        checked = checked._replace(levers=tuple(lever for lever in checked.levers if lever != "spares"))
    measured = _measured(options.records, job.graph)
    asked = _asked(named, options, checked, job, measured)
    setting = _setting(named, faults, options, asked, checked)
    for rate in measured if not named.as_json else ():
        between = f"95 %: {rate.low:.2g} to {rate.high:.2g} a day"
        click.echo(f"measured --rate {rate.text}: {rate.faults} in {rate.days:.3g} days ({between})", err=True)
    runs = count(1)
    with ProgressLine(quiet=named.as_json) as progress:

        def tell(what: str) -> None:
            n = next(runs)
            progress.show(lambda waited_s: f"advising: {n} runs in {waited_s:.0f} s, now {what}")

        advice = advise(asked, tell)
    few = [
        f"{rate.text.partition('=')[0]} is measured from {rate.faults} failure{'s' * (rate.faults != 1)}: between "
        f"{rate.low:.2g} and {rate.high:.2g} a day is likely; try both ends as --rate"
        for rate in measured
        if rate.faults < FEW
    ]
    advice = advice._replace(notes=[*advice.notes, *few])
    if options.plot_file is not None:
        write(Path(options.plot_file), advice_plot(advice, setting).encode())
    if options.html_file is not None:
        write(Path(options.html_file), advice_page(advice, setting).encode())
    if named.as_json:
        rates = [rate._asdict() for rate in measured]
        print_json("advice", **advice_values(advice, setting), measured_rates=rates)
    else:
        click.echo(advice_text(advice, setting), nl=False)
    sys.exit(0)


def _read(faults: FaultOptions, options: AdviceOptions) -> _Checked:
    """Read the options that need no topology, and raise one FlowdistError with everything that is wrong in them."""
    wrong: list[FlowdistError] = []

    def read(parse: Callable[[], Any], default: Any = None) -> Any:
        try:
            return parse()
        except FlowdistError as error:
            wrong.append(error)
            return default

    plan = read(faults.plan, NOTHING)
    if plan == NOTHING and not options.records and not wrong:
        wrong.append(FlowdistError(NO_FAULTS, help=NO_FAULTS_HELP))
    end_ns = read(lambda: until_ns(options.until, "12h or 30d"))
    seeds = read(lambda: _seeds(options.seeds))
    for name in options.only:
        if name not in LEVERS:
            wrong.append(FlowdistError(f"--only {name} is no lever", help=did_you_mean(name, LEVERS)))
    price = read(lambda: _price(options.price))
    if options.plot_file is not None and Path(options.plot_file).suffix.lower() != ".svg":
        help = "name a file that ends in .svg"
        wrong.append(FlowdistError(f"--plot {options.plot_file}: the plot is SVG", help=help))
    if options.plot_file is not None and options.only and "interval" not in options.only:
        text = "--plot shows the checkpoint interval, which --only excludes"
        wrong.append(FlowdistError(text, help="add --only interval"))
    _refuse_all(wrong)
    levers = tuple(lever for lever in LEVERS if not options.only or lever in options.only)
    return _Checked(plan, end_ns, seeds, levers, price)


def _refuse_all(wrong: list[FlowdistError]) -> None:
    """Raise one FlowdistError with all messages, each with its help; do nothing without any."""
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        lines = [f"{error.message}{f' ({error.help})' if error.help else ''}" for error in wrong]
        raise FlowdistError("\n".join([f"{len(wrong)} options are wrong", *lines]))


def _price(text: str | None) -> _Price | None:
    if text is None:
        return None
    match = PRICE.fullmatch(text)
    if match is None:
        help = "write --price 2.5, --price 2.5/gpu-hour or --price 20/node-hour"
        raise FlowdistError(f"--price {text} cannot be read", help=help)
    return _Price(float(match[1]), match[2] or "")


def _seeds(text: str | None) -> range | None:
    """Return the seeds of --seeds, two at least: with one seed nothing is known about the error."""
    if text is None:
        return None
    chosen = CampaignOptions(seeds=text).chosen()
    if len(chosen) < 2:
        raise FlowdistError(f"--seeds {text}: one seed shows no uncertainty", help="write --seeds 1:20")
    return range(chosen[0], chosen[-1] + 1)


def _job(
    named: TopologyOptions, options: AdviceOptions, sets: tuple[str, ...] = (), nodes: int | None = None
) -> tuple[Experiment, bool]:
    """Compile the topology with changes; return the job without faults and end, and whether it declares its nodes."""
    every, count = (*named.sets, *sets), str(nodes) if nodes is not None else named.nodes
    graph = load(named._replace(sets=every, nodes=count, as_json=True)).graph  # its warnings are told already
    times = times_of(options.workload_file, graph) if options.workload_file is not None else None
    return of_topology(graph, NOTHING, times, keep=fields_set(every)), graph.cluster.given


def _measured(names: tuple[str, ...], graph: RoleGraph) -> list[MeasuredRate]:
    """Return the rates that the records of --from show."""
    from flowdist.advice.measured_rates import measured_rates  # only with --from, which reads records
    from flowdist.cli.shared.records import open_record
    from flowdist.record.reader import WholeRecord

    records = [WholeRecord(name, (file := open_record(name)).header, file.whole()) for name in names]
    found = measured_rates(records, graph)
    if names and not found:
        help = "name runs in which something failed, or write --rate node-kill=6.5e-3/node-day/15m"
        raise FlowdistError(f"{', '.join(names)}: no failure of a node or worker of this job", help=help)
    return found


def _asked(
    named: TopologyOptions, options: AdviceOptions, checked: _Checked, job: Experiment, measured: list[MeasuredRate]
) -> Question:
    """Return the question of the command line: the job with its faults, and how often it is simulated."""
    plan = join_plans([checked.plan, parse_plan(rates=[rate.text for rate in measured])])
    mode = mode_of(job._replace(plan=plan))
    budget = budget_of(job.graph, plan, mode, checked.until_ns)
    job = job._replace(plan=plan, until_ns=checked.until_ns or horizon_ns(job.graph, plan, budget.faults))
    seeds = checked.seeds or range(1, budget.measuring + 1)
    choosing = range(seeds[-1] + 1, seeds[-1] + 1 + (len(seeds) if checked.seeds else budget.choosing))

    def compile(sets: tuple[str, ...], nodes: int | None) -> RoleGraph:
        return _job(named, options, sets, nodes)[0].graph

    return Question(job, mode, compile, choosing, seeds, checked.levers)


def _setting(
    named: TopologyOptions, faults: FaultOptions, options: AdviceOptions, asked: Question, checked: _Checked
) -> Setting:
    """Return what the words of the advice need: the price, what was simulated, and how commands are written."""
    job, seeds = asked.job, asked.measuring
    many = asked.until_ns * faults_per_ns(job.graph, job.plan) + len(job.plan.faults)
    rates = [rate.spec for rate in job.plan.rates if not rate.where]
    plan = [word for text in rates for word in ("--rate", text)]
    plan += [word for file in faults.files for word in ("--faults", file)]
    times = ["--workload", options.workload_file] if options.workload_file is not None else []
    is_macro = asked.mode == "fast"
    end = ["--until", format_duration(asked.until_ns)]
    end += ["--macro", "--seeds", f"{seeds[0]}:{seeds[-1]}"] if is_macro else ["--seed", str(seeds[0])]

    def command(words: list[str]) -> str:
        own = named._replace(nodes=None) if "--nodes" in words else named
        target = [named.target] if named.target is not None else []
        return shlex.join(["flowdist", "simulate", *target, *own.words(), *plan, *times, *end, *words])

    price = checked.price.per_hour(job) if checked.price is not None else None
    today_ns = leading_role(job.graph).workload.checkpoint_every_ns
    unit = "GPU" if job.gpus else "node"
    return Setting(job.graph.name, runs_text(seeds, asked.mode, asked.until_ns, many), today_ns, unit, price, command)
