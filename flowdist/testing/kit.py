"""Functions for tests of a topology: simulate it, demand that it recovers, explore what else could happen.

Topologies are files, Topology objects or compiled graphs. Nothing runs but the simulator: no torch, no processes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded, load_topology
from flowdist.dsl.read.objects import methods_of, misspelt, place_of_method
from flowdist.errors import FlowdistError, did_you_mean
from flowdist.faults.files import join_plans, parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph
from flowdist.sim.checks.bounds import bounds_of
from flowdist.sim.checks.properties import Always, Check, Eventually, Properties, Sometimes, properties_of
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.play import play
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.result import SimResult, unfired_texts
from flowdist.sim.simulation import with_nodes
from flowdist.sim.user_code.models import load_model
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing.campaign import Report, campaign, replay_command
from flowdist.testing.corpus import Corpus, kinds_of, seeds_text
from flowdist.testing.declare import load_properties, read_duration, refuse_doubles, side_file
from flowdist.testing.repro_command import as_texts, bound_words, note_for_hypothesis, replay_lines, words_of
from flowdist.testing.sameness import difference, errors_text, has_models, unlike, unlike_or
from flowdist.testing.tracing import untraced

KINDS_SHOWN = 5  # kinds of failures in the message of `explore`
Given = ParamSpec("Given")
T = TypeVar("T")
_SHOWN: dict[str | tuple[str, type[Warning], int], int] = {}  # of Python: the warnings that this process has shown


def _in_words(function: Callable[Given, T]) -> Callable[Given, T]:
    """Wrap a function of the kit so that the traceback of its FlowdistError ends at the caller."""

    @functools.wraps(function)
    def asked(*args: Given.args, **options: Given.kwargs) -> T:
        __tracebackhide__ = True  # pytest leaves the frame out
        try:
            return function(*args, **options)
        except FlowdistError as error:
            error.__suppress_context__ = True
            raise error.with_traceback(None)  # noqa: B904 (its cause, if it has one, stays)

    return asked


@_in_words
def graph_of(topology: str | Path | Topology | RoleGraph, params: Mapping[str, object] | None = None) -> RoleGraph:
    """Compile a topology for simulation. If it declares no nodes, it gets one node that is large enough for all of it.

    Args:
        topology: Path of a topology file (`file.py` or `file.py:name`), a Topology, or a compiled graph.
        params: Arguments for the function `topology` of the file; their values are passed as text. Only for files.

    Returns:
        The role graph, a frozen value.

    Raises:
        TopologyProblems: The topology has errors. The exception has all of them.
    """
    if isinstance(topology, RoleGraph):
        return with_nodes(topology)
    if isinstance(topology, Topology):
        return with_nodes(compile_loaded(topology).graph)
    values = {name: str(value) for name, value in (params or {}).items()}
    return with_nodes(load_topology(str(topology), values, (), None).graph)


@_in_words
def simulate(
    topology: str | Path | Topology | RoleGraph,
    *faults: str | Plan,
    seed: int = 0,
    schedule: int = 0,
    collective: Literal["wait", "fail", "hang"] | None = None,
    until: str | None = None,
    scale: str | Sequence[str] = (),
    add: str | Sequence[str] = (),
    drain: str | Sequence[str] = (),
    params: Mapping[str, object] | None = None,
    always: Sequence[Always | Check] = (),
    eventually: Sequence[Eventually] = (),
    sometimes: Sequence[Sometimes] | Mapping[str, Check] = (),
    properties: str | Path | None = None,
) -> SimResult:
    """Simulate one run of the topology in virtual time. Times are texts such as `"30s"` or `"2h"`.

    Args:
        topology: Path of a topology file (`file.py` or `file.py:name`), a Topology, or a compiled graph.
        faults: Texts in the fault grammar, such as `"node1@5m/2m"` or `"trainer/0@step=trainer,500:exit=3"`, or plans.
        seed: Number that draws the start-up times of workers. With 0 they are as `workload=` says.
        schedule: Number that draws the order of events that happen at the same time; 0: as planned.
        collective: What the peers of a dead worker do, if `workload=` does not say: "wait", "fail" or "hang". None:
            they wait.
        until: Virtual time at which the simulation stops. None: at the end of the job.
        scale: Orders to change the size of a role, one text or several: `"trainer=4@60s"`.
        add: Nodes that join, one text or several: `"node5@90s"`.
        drain: Orders to drain a node, one text or several: `"node1@2m"`.
        params: Arguments for the function `topology` of the file.
        always: Functions that are called with the state of the job after every event, or results of
            `flowdist.testing.always`. False, or an AssertionError, is a violation.
        eventually: Properties made by `flowdist.testing.eventually`, which may be false for a limited time.
        sometimes: Points (situations to look for) made by `flowdist.testing.sometimes`, or a dict of functions by name.
            `seen` of the result has those that were reached.
        properties: File with more properties and points. None: `x_properties.py` beside the topology file `x.py`, if it
            exists.

    Returns:
        A result with `job` (the state of the job at the end; its `outcome` is None if it has not ended), `lines` (the
        trace), `spent` (ns by role and kind of time), `violation` (what did not hold, or None), `seen` (points that
        were reached, with their first times in ns), `unfired` (faults that hit nothing). A violation ends the
        simulation, and raises nothing.

    Raises:
        FaultError: A fault cannot be read, or has no target in this topology.
        TopologyProblems: The topology has errors.
        FlowdistError: Properties cannot be read, or raise an exception.
    """
    given = {name: value for name, value in locals().items() if name not in ("topology", "faults")}
    compiled = graph_of(topology, params)
    _warn_of_misspelt(compiled)
    graph = with_collective(compiled, collective or "")
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    own = parse_plan((fault for fault in faults if isinstance(fault, str)), *map(as_texts, (scale, add, drain)))
    plan = join_plans([own, *(fault for fault in faults if isinstance(fault, Plan))])
    check_faults(plan, graph)
    note_for_hypothesis(topology, compiled, faults, given)
    until_ns = read_duration("until", until) if until is not None else None
    with untraced():
        return play(Experiment(graph, plan, until_ns, seed, schedule), properties=demanded).exact


def _warn_of_misspelt(graph: RoleGraph) -> None:
    """Warn, at its line, of each method of a model that almost has the name of one which its class lacks.

    Such a model passes every test: one with `publsh` saves nothing, so nothing can be restored wrongly.
    """
    for role in graph.roles:
        if role.simulate:
            found = load_model(graph, role)
            for method, meant in misspelt(methods_of(found), role.kind):
                file, line = place_of_method(found, method)
                text = (
                    f"{found.__qualname__}.{method}: did you mean {meant}? A model of a {role.kind} has no {method}()"
                )
                warnings.warn_explicit(text, UserWarning, file, line, found.__module__, _SHOWN)


def _demanded(topology: object, file: str | Path | None, given: Properties) -> Properties:
    """Return the properties of the test, and of the file that it names or that lies beside the topology file."""
    if file is None and isinstance(topology, str | Path):
        file = side_file(topology)
    demanded = load_properties(Path(file)).and_also(given) if file is not None else given
    refuse_doubles(demanded)
    return demanded


@_in_words
def assert_recovers(
    topology: str | Path | Topology | RoleGraph,
    *faults: str | Plan,
    within: str | None = None,
    lost_work: str | None = None,
    goodput: float | None = None,
    charged: Mapping[str, int] | None = None,
    same_state: bool = False,
    **options: Any,
) -> SimResult:
    """Simulate one run, and demand that the job succeeds, every fault fires, and the cost stays within bounds.

    A job that has not ended at `until` has not succeeded.

    Args:
        topology: As for `simulate`.
        faults: As for `simulate`.
        within: Longest time that is allowed from the beginning of an incident until its worlds of tasks step again:
            `"30s"`.
        lost_work: Most work, as time, that a world may have to do again: `"1m"`.
        goodput: Smallest productive share of the time of task replicas that is allowed, 0 to 1.
        charged: By role, the exact number of incidents that are charged to its budget: `{"trainer": 1}`.
        same_state: True: models of roles have to compute the same as without faults; see `assert_same_result`.
        options: Other arguments of `simulate`. Points in its `sometimes=` have to be reached.

    Returns:
        The result of `simulate`.

    Raises:
        AssertionError: Demands are not met. The message has all of them, and for a topology file the command that
            replays the run.
        FlowdistError: As for `simulate`; a bound cannot be read; `charged` has a role that the job does not have.
    """
    __tracebackhide__ = True  # pytest leaves the frame out: the message says more
    result = simulate(topology, *faults, **options)
    for role in charged or {}:
        if role not in result.job.roles:
            raise FlowdistError(f"charged: there is no role {role!r}", help=did_you_mean(role, result.job.roles))
    wrong = []
    if result.violation is not None:
        wrong.append(str(result.violation))
    elif result.job.outcome != "succeeded":
        wrong.append(f"the job has {result.job.outcome or 'not ended'}: {_end_text(result, options)}")
    wrong += unfired_texts(result)  # often an effect of what is wrong above: the job had ended by then
    if raised := errors_text(result.played) if wrong else "":
        wrong.insert(0, raised)
    if same_state and not wrong:
        wrong += _changed(topology, faults, result, options)
    wrong += [text for _, text in bounds_of(within, lost_work, goodput).broken(result)]
    points = properties_of(sometimes=options.get("sometimes", ())).sometimes  # campaigns look for those of a file
    wrong += [f"never seen: {point.name}" for point in points if point.name not in result.seen]
    for role, count in (charged or {}).items():
        if (found := len(result.job.roles[role].charges)) != count:
            wrong.append(f"{role} was charged for {found} incidents, not {count}")
    if wrong:
        more = bound_words(within, lost_work, goodput)
        again = replay_lines(topology, faults, options, more)
        raise AssertionError("\n".join([*wrong, *again]))
    return result


def _end_text(result: SimResult, options: Mapping[str, Any]) -> str:
    """Return why a job has not succeeded: the reason of its end, or what it waits for when the simulation stops."""
    if result.job.outcome is not None:
        return result.job.ending_reason
    waits = f"waiting for {', '.join(result.waiting)}" if result.waiting else "all of it runs"
    return f"until={options['until']!r} is too short; {waits}" if options.get("until") is not None else waits


def assert_same_result(topology: str | Path | Topology | RoleGraph, *faults: str | Plan, **options: Any) -> SimResult:
    """Demand that resume logic is right: after these faults, the result of users' models is the same as without them.

    The models of roles (`simulate=`) run a second time with the same seed and without faults. In the history that
    counts, each sample has to be used as often, rank 0 has to log the same in every step, and the states at the end
    have to be equal.

    Args:
        topology: As for `simulate`. At least one role has a model.
        faults: As for `simulate`. Each has to fire.
        options: Other arguments of `simulate`.

    Returns:
        The result of the run with faults, as `simulate` returns it.

    Raises:
        AssertionError: The results differ (the message has the first difference, or that a model does not do the same
            twice, and for a topology file the command that replays the run), the job does not succeed, or no role has a
            model.
        FlowdistError: As for `simulate`.
    """
    __tracebackhide__ = True
    return assert_recovers(topology, *faults, same_state=True, **options)


def _changed(
    topology: str | Path | Topology | RoleGraph,
    faults: Sequence[str | Plan],
    result: SimResult,
    options: Mapping[str, Any],
) -> list[str]:
    """Return how a run without faults differs, in words, or nothing; then also whether models do the same twice."""
    if not has_models(result.job.graph):
        return ["no role has a model: write simulate= in the topology"]
    kept = {name: value for name, value in options.items() if name in ("seed", "collective", "until", "params")}
    truth = simulate(topology, **kept)
    if truth.job.outcome != "succeeded":
        why = errors_text(truth.played) or truth.job.ending_reason or f"waiting for {', '.join(truth.waiting)}"
        return [f"without any fault the job does not succeed: {why}"]
    broken = difference(truth, result)
    if broken is None:
        return []
    broken = unlike_or(broken, result, simulate(topology, *faults, **options))
    return [f"{broken.property}: {broken.text}"]


def check_determinism(topology: str | Path | Topology | RoleGraph, *faults: str | Plan, **options: Any) -> None:
    """Demand that users' models do the same when they run again, so that a failure can be replayed.

    The run is simulated twice with the same arguments. The runs differ if a model reads a clock, or draws random
    numbers other than those of `ctx.random`.

    Args:
        topology: As for `simulate`.
        faults: As for `simulate`.
        options: Other arguments of `simulate`.

    Raises:
        AssertionError: The two runs differ. The message has the first step that differs.
        FlowdistError: As for `simulate`.
    """
    __tracebackhide__ = True
    text = unlike(*(simulate(topology, *faults, **options) for _ in range(2)))
    if text:
        raise AssertionError(text)


@_in_words
def explore(
    topology: str | Path | Topology | RoleGraph,
    *,
    seeds: int | Sequence[int] = 100,
    jobs: int = 1,
    params: Mapping[str, object] | None = None,
    strict: bool = False,
    always: Sequence[Always | Check] = (),
    eventually: Sequence[Eventually] = (),
    sometimes: Sequence[Sometimes] | Mapping[str, Check] = (),
    properties: str | Path | None = None,
    recovers_within: str | None = None,
    lost_work: str | None = None,
    goodput: float | None = None,
    cover: bool = False,
    corpus: str | Path | None = None,
) -> Report:
    """Run a campaign: for each seed, draw faults that the topology promises to survive, and demand that it does.

    Where roles have models (`simulate=`), these have to give the result that they give without faults.

    Args:
        topology: As for `simulate`.
        seeds: Number of seeds, which are 1, 2, ...; or the seeds themselves.
        jobs: Number of processes that run seeds.
        params: As for `simulate`.
        strict: True: an exception in a model is a failure, even if the topology survives the worker's exit.
        always, eventually, properties: As for `simulate`; they have to hold in every run.
        sometimes: As for `simulate`; at least one run has to reach each point.
        recovers_within: Longest time that is allowed in any run from the beginning of an incident until its worlds of
            tasks step again: `"1m"`.
        lost_work: Most work, as time, that a world may have to do again in any run: `"5m"`.
        goodput: Smallest productive share of the time of task replicas that is allowed in any run, 0 to 1.
        cover: True: some run has to reach each built-in point that faults can reach in this topology.
        corpus: File that keeps failures; it is made if there is none. Failures in it are tried first, both their seeds
            and their plans.

    Returns:
        A report with `seeds` (number of seeds), `coverage` (faults by kind and phase of the job), `points` (number of
        runs that reached each point), `recoveries` (number of incidents that ended in a recovery).

    Raises:
        AssertionError: Runs fail, or points are not reached. The message has the shortest plan of each kind of failure,
            and for a topology file the command that replays it.
        FlowdistError: Bounds, properties, the corpus or the topology cannot be read.
        KeyboardInterrupt: The user interrupted the campaign. Failures so far are in the corpus.
    """
    __tracebackhide__ = True
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    bounds = bounds_of(recovers_within, lost_work, goodput)
    kept = Corpus(Path(corpus)) if corpus is not None else None
    known = kept.open() if kept is not None else []
    asked_for = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    chosen = list(dict.fromkeys([*(one.seed for one in known), *asked_for]))
    asked: dict[str, Any] = {"jobs": jobs, "strict": strict, "properties": demanded, "bounds": bounds, "known": known}
    graph = graph_of(topology, params)
    _warn_of_misspelt(graph)
    report = campaign(graph, chosen, **asked)
    if kept is not None:
        kept.keep(report.failures)
    if report.stopped == "interrupted":
        raise KeyboardInterrupt
    named = {"params": params, "properties": properties}
    words = [*words_of(named), *bound_words(recovers_within, lost_work, goodput)]
    lines = _failure_lines(topology, report, words)
    missed = [] if report.stopped else report.never_seen + (report.never_reached if cover else [])
    lines += [f"never seen in {report.seeds} seeds: {', '.join(missed)}"] if missed else []
    if lines:
        raise AssertionError("\n".join(lines))
    return report


def _failure_lines(topology: object, report: Report, words: Sequence[str]) -> list[str]:
    """Return the lines about failures: for each kind, KINDS_SHOWN at most, the shortest plan and a replay command."""
    kinds = kinds_of(report.failures)
    stopped = f"; stopped {report.stopped}" if report.stopped.startswith("after") else ""
    lines = [f"{len(report.failures)} of {report.seeds} seeds fail{stopped}"] if kinds else []
    for failure, alike in kinds[:KINDS_SHOWN]:
        lines += [f"{seeds_text(failure, alike)}: {failure.property}: {failure.text}"]
        lines += [f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}"]
        lines += [f"  {failure.divergence}"] if failure.divergence else []
        if isinstance(topology, str | Path):
            lines += [f"  again: {replay_command(str(topology), words, failure)}"]
    more = len(kinds) - KINDS_SHOWN
    return [*lines, f"... and {more} kinds of failures more"] if more > 0 else lines
