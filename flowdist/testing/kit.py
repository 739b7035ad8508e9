"""Functions for tests of a topology: simulate it, demand that it recovers, explore what else could happen.

    from flowdist.testing import assert_recovers, explore, simulate

    def test_a_lost_node_costs_less_than_a_minute():
        assert_recovers("topology.py", "node1@5m/2m", lost_work="1m", within="30s")

    def test_whatever_the_topology_promises_to_survive():
        explore("topology.py", seeds=200)

Topologies are files, Topology objects or compiled graphs. Nothing runs but the simulator: no torch, no processes, no
real time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded, load_topology
from flowdist.errors import FlowdistError, did_you_mean
from flowdist.faults.files import join_plans, parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph, parse_duration
from flowdist.sim.checks.bounds import bounds_of
from flowdist.sim.checks.properties import Always, Check, Eventually, Properties, Sometimes, properties_of
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.faults.unfired import unfired_texts
from flowdist.sim.simulation import SimResult, Simulation, with_nodes
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing.campaign import Report, campaign, replay_command
from flowdist.testing.corpus import Corpus, kinds_of, seeds_text
from flowdist.testing.declare import load_properties, refuse_doubles, side_file
from flowdist.testing.repro_command import as_texts, bound_words, note_for_hypothesis, replay_lines, words_of
from flowdist.testing.sameness import difference, errors_text, has_models, unlike
from flowdist.testing.tracing import untraced

KINDS_SHOWN = 5  # failures that are not alike, in the message of `explore`
Given = ParamSpec("Given")
T = TypeVar("T")


def _in_words(function: Callable[Given, T]) -> Callable[Given, T]:
    """Wrap a function of the kit so that its FlowdistError points to the caller, without the frames of the kit."""

    @functools.wraps(function)
    def asked(*args: Given.args, **options: Given.kwargs) -> T:
        __tracebackhide__ = True  # of pytest
        try:
            return function(*args, **options)
        except FlowdistError as error:
            error.__suppress_context__ = True
            raise error.with_traceback(None)  # noqa: B904 (its cause, if it has one, stays)

    return asked


@_in_words
def graph_of(topology: str | Path | Topology | RoleGraph, params: Mapping[str, object] | None = None) -> RoleGraph:
    """Return the compiled topology, with nodes.

    Args:
        topology: A file, a Topology, or a compiled graph.
        params: Parameters of a topology file that is a function.

    Raises:
        TopologyProblems: with every problem of the topology.
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
    """Simulate one run of the topology in virtual time.

    Args:
        topology: A file, a Topology, or a compiled graph.
        faults: Texts in the fault grammar, `"node1@5m/2m"`, `"trainer/0@step=trainer,500:exit=3"`, or plans.
        seed: Draws start-up times. With 0 they are nominal.
        schedule: Orders events of the same time, each number in another way.
        collective: What the peers of a dead worker do, where `workload=` does not say: see `Workload`.
        until: When the clock stops, such as `"2h"`. None: at the end of the job.
        scale: Orders to scale as on the command line, one or several: `"trainer=4@60s"`.
        add: Nodes that join: `"node5@90s"`.
        drain: Orders to drain: `"node1@2m"`.
        params: Parameters of a topology file that is a function.
        always: Properties that are called with the state of the job after every event. False, or an AssertionError,
            is a violation.
        eventually: Properties made by `flowdist.testing.eventually`: true again within their time, and at the end.
        sometimes: Points to look for: made by `flowdist.testing.sometimes`, or functions by name. Those that were
            reached are in `result.seen`, beside the built-in ones.
        properties: A file with more of all three; None: `x_properties.py` beside `x.py`, if it exists.

    Returns:
        The result: `job` (the final state), `lines` (the trace), `spent` (where the time went), `violation`, `seen`.

    Raises:
        FaultError: for a fault that cannot be read, or that has no target in this topology.
        FlowdistError: for properties that cannot be read, or that raise an exception.
    """
    compiled = graph_of(topology, params)
    graph = with_collective(compiled, collective or "")
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    own = parse_plan((fault for fault in faults if isinstance(fault, str)), *map(as_texts, (scale, add, drain)))
    plan = join_plans([own, *(fault for fault in faults if isinstance(fault, Plan))])
    check_faults(plan, graph)
    given: dict[str, Any] = {"seed": seed, "schedule": schedule, "collective": collective, "until": until}
    given |= {"scale": scale, "add": add, "drain": drain, "params": params, "properties": properties}
    given |= {"always": always, "eventually": eventually, "sometimes": sometimes}
    note_for_hypothesis(topology, compiled, faults, given)
    with untraced():
        simulation = Simulation(graph, plan, seed=seed, schedule=schedule, checks="paced", properties=demanded)
        return simulation.run(parse_duration(until) if until is not None else None)


def _demanded(topology: object, file: str | Path | None, given: Properties) -> Properties:
    """Return the properties of the test, and those of the file that is named or stands beside the topology."""
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

    Args:
        topology: A file, a Topology, or a compiled graph.
        faults: As of `simulate`.
        within: The worlds of each incident step again after so long at most: `"30s"`.
        lost_work: The longest work of any world that may have to be done again: `"1m"`.
        goodput: The least productive share of the time of the replicas of tasks, from 0 to 1.
        charged: By role: how many incidents its budgets are charged for, exactly.
        same_state: The models of the roles do what they do without faults: see `assert_same_result`.
        options: As of `simulate`. Points given as `sometimes` have to be reached.

    Returns:
        The result, as of `simulate`.

    Raises:
        AssertionError: with all demands that are not met, and the command that replays the run.
        FlowdistError: as of `simulate`, and for a role in `charged` that the job does not have.
    """
    __tracebackhide__ = True  # of pytest: the message says more than the frames of the kit
    result = simulate(topology, *faults, **options)
    for role in charged or {}:
        if role not in result.job.roles:
            raise FlowdistError(f"charged: there is no role {role!r}", help=did_you_mean(role, result.job.roles))
    wrong = unfired_texts(result)
    if result.violation is not None:
        wrong.append(str(result.violation))
    elif result.job.outcome != "succeeded":
        end = result.job.ending_reason or f"waiting for {', '.join(result.waiting)}"
        wrong.append(f"the job has {result.job.outcome or 'not ended'}: {end}")
    if raised := errors_text(result.played) if wrong else "":
        wrong.append(raised)
    if same_state and not wrong:
        wrong += _changed(topology, result, options)
    wrong += [text for _, text in bounds_of(within, lost_work, goodput).broken(result)]
    points = properties_of(sometimes=options.get("sometimes", ())).sometimes  # points of a file are for campaigns
    wrong += [f"never seen: {point.name}" for point in points if point.name not in result.seen]
    for role, count in (charged or {}).items():
        if (found := len(result.job.roles[role].charges)) != count:
            wrong.append(f"{role} was charged for {found} incidents, not {count}")
    if wrong:
        more = bound_words(within, lost_work, goodput)
        again = replay_lines(topology, faults, options, more)
        raise AssertionError("\n".join([*wrong, *again]))
    return result


def assert_same_result(topology: str | Path | Topology | RoleGraph, *faults: str | Plan, **options: Any) -> SimResult:
    """Demand that resume logic is right: after these faults the result is the same as without them.

    What the models of the roles (`simulate=`) did is compared with a run of the same seed without faults. In the
    history that counts each sample was used as often, rank 0 has logged the same in every step, and the states at the
    end are the same.

    Args:
        topology: A file, a Topology, or a compiled graph.
        faults: As of `simulate`. Each has to fire.
        options: As of `simulate`.

    Returns:
        The result of the run with faults, as of `simulate`.

    Raises:
        AssertionError: with the first difference, and the command that replays the run; also if the job does not
            succeed, or no role has a model.
    """
    __tracebackhide__ = True
    return assert_recovers(topology, *faults, same_state=True, **options)


def _changed(topology: str | Path | Topology | RoleGraph, result: SimResult, options: Mapping[str, Any]) -> list[str]:
    if not has_models(result.job.graph):
        return ["no role has a model: write simulate= in the topology"]
    kept = {name: value for name, value in options.items() if name in ("seed", "collective", "until", "params")}
    truth = simulate(topology, **kept)
    if truth.job.outcome != "succeeded":
        why = errors_text(truth.played) or truth.job.ending_reason or f"waiting for {', '.join(truth.waiting)}"
        return [f"without any fault the job does not succeed: {why}"]
    broken = difference(truth, result)
    return [f"{broken.property}: {broken.text}"] if broken is not None else []


def check_determinism(topology: str | Path | Topology | RoleGraph, *faults: str | Plan, **options: Any) -> None:
    """Demand that user code does the same when it runs again: it reads no clock, and no randomness but `ctx.random`.

    Args:
        topology: A file, a Topology, or a compiled graph.
        faults: As of `simulate`.
        options: As of `simulate`.

    Raises:
        AssertionError: with the first step that differs.
    """
    __tracebackhide__ = True
    text = unlike(*(simulate(topology, *faults, **options) for _ in range(2)))
    if text:
        raise AssertionError(f"{text}: user code reads a clock, or random numbers that are not ctx.random's")


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
    """Draw a plan of faults that the topology promises to survive for each seed, and demand that it does.

    The models of roles have to give the result that they give without faults.

    Args:
        topology: A file, a Topology, or a compiled graph.
        seeds: The number of seeds, from 1 on; or the seeds.
        jobs: Number of processes.
        strict: An exception of user code is a failure, whatever the topology makes of it.
        params, always, eventually, properties: As of `simulate`.
        sometimes: As of `simulate`. Each point has to be reached by some run.
        recovers_within: In every run the worlds of each incident step again after so long at most: `"1m"`.
        lost_work: The longest work of any world in any run that may have to be done again: `"5m"`.
        goodput: The least productive share of the time of the replicas of tasks in any run, from 0 to 1.
        cover: The built-in points that faults can reach in this topology have to be reached as well.
        corpus: A file that keeps failures. Those in it are tried first, both the seed and the plan.

    Returns:
        The report: `coverage` (faults by kind and phase), `points` (in how many runs each was reached), `recoveries`.

    Raises:
        AssertionError: with the shortest plan of each failure and the command to replay it, or with points not reached.
        FlowdistError: for bounds, properties or a corpus that cannot be read.
    """
    __tracebackhide__ = True
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    bounds = bounds_of(recovers_within, lost_work, goodput)
    kept = Corpus(Path(corpus)) if corpus is not None else None
    known = kept.open() if kept is not None else []
    asked_for = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    chosen = list(dict.fromkeys([*(one.seed for one in known), *asked_for]))
    asked: dict[str, Any] = {"jobs": jobs, "strict": strict, "properties": demanded, "bounds": bounds, "known": known}
    report = campaign(graph_of(topology, params), chosen, **asked)
    if kept is not None:
        kept.keep(report.failures)
    if report.stopped == "interrupted":
        raise KeyboardInterrupt
    named = {"params": params, "properties": properties}
    words = [*words_of(named), *bound_words(recovers_within, lost_work, goodput)]
    lines = [*_failure_lines(topology, report, words), *_missed_lines(report, cover=cover)]
    if lines:
        raise AssertionError("\n".join(lines))
    return report


def _failure_lines(topology: object, report: Report, words: Sequence[str]) -> list[str]:
    """Return the lines about the failures of a campaign, and about the first kinds the command that replays one."""
    kinds = kinds_of(report.failures)
    lines = [f"{len(report.failures)} of {report.seeds} seeds fail"] if kinds else []
    for failure, alike in kinds[:KINDS_SHOWN]:
        lines += [f"{seeds_text(failure, alike)}: {failure.property}: {failure.text}"]
        lines += [f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}"]
        lines += [f"  {failure.divergence}"] if failure.divergence else []
        if isinstance(topology, str | Path):
            lines += [f"  again: {replay_command(str(topology), words, failure)}"]
    more = len(kinds) - KINDS_SHOWN
    return [*lines, f"... and {more} kinds of failures more"] if more > 0 else lines


def _missed_lines(report: Report, *, cover: bool) -> list[str]:
    """Return a line with the points that no run reached: the user's, and with `cover` the built-in ones."""
    missed = [] if report.stopped else report.never_seen + (report.never_reached if cover else [])
    return [f"never seen in {report.seeds} seeds: {', '.join(missed)}"] if missed else []
