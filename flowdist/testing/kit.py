"""What a test of one's own topology says: simulate it, demand that it recovers, explore what else could happen.

    from flowdist.testing import assert_recovers, explore, simulate

    def test_a_lost_node_costs_less_than_a_minute():
        assert_recovers("topology.py", "node1@5m/2m", lost_work="1m", within="30s")

    def test_whatever_the_topology_promises_to_survive():
        explore("topology.py", seeds=200)

Topologies are files, Topology objects or compiled graphs. No torch, no processes, and no clock but the simulated one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from flowdist.dsl import Topology
from flowdist.dsl.load import compile_loaded, load_topology
from flowdist.errors import FlowdistError, did_you_mean
from flowdist.faults.files import parse_plan
from flowdist.faults.grammar import Plan
from flowdist.graph import RoleGraph, parse_duration
from flowdist.sim.checks.bounds import bounds_of
from flowdist.sim.checks.properties import Always, Check, Eventually, Properties, Sometimes, properties_of
from flowdist.sim.faults.injector import check_faults
from flowdist.sim.faults.unfired import unfired_texts
from flowdist.sim.simulation import SimResult, Simulation, with_nodes
from flowdist.sim.workers.collectives import with_collective
from flowdist.testing.campaign import Report, campaign, replay_command
from flowdist.testing.corpus import Corpus
from flowdist.testing.declare import load_properties, refuse_doubles, side_file
from flowdist.testing.deduplication import kinds_of, seeds_text
from flowdist.testing.repro_command import as_texts, bound_words, note_for_hypothesis, replay_lines, words_of
from flowdist.testing.sameness import difference, errors_text, has_models, unlike
from flowdist.testing.tracing import untraced

Given = ParamSpec("Given")
T = TypeVar("T")


def _in_words(function: Callable[Given, T]) -> Callable[Given, T]:
    """What is wrong with what was asked is told where it was asked, without the places in here where it was found."""

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
    """The compiled topology, with nodes.

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
    """One run in virtual time.

    Args:
        faults: In the fault grammar: `"node1@5m/2m"`, `"trainer/0@step=trainer,500:exit=3"`; or plans of them.
        seed: 0 is nominal; others spread start-up times.
        schedule: In which order things happen that happen at the same time: another one for each number.
        collective: What becomes of the peers of a worker that dies, where `workload=` does not say: see `Workload`.
        until: When to stop the clock, such as `"2h"`.
        scale, add, drain: As on the command line: `"trainer=4@60s"`, `"node5@90s"`, `"node1@2m"`; one, or several.
        params: Of a topology file that is a function.
        always: Called with the state of the job after every event; False, or an AssertionError, is a violation.
        eventually: What `flowdist.testing.eventually` made: true again within its time, and at the end.
        sometimes: Points to look for: what `flowdist.testing.sometimes` made, or functions by name. Those that were
            reached are in `result.seen`, beside the built-in ones.
        properties: A file of more of them; else `x_properties.py` beside `x.py`, where there is one.

    Returns:
        The result: `job` (the final state), `lines` (the trace), `spent` (where the time went), `violation`, `seen`.

    Raises:
        FaultError: for a fault that cannot be read, or has no target.
        FlowdistError: for properties that cannot be read, or raise an exception.
    """
    compiled = graph_of(topology, params)
    graph = with_collective(compiled, collective or "")
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    plan = parse_plan(tuple(fault for fault in faults if isinstance(fault, str)), *map(as_texts, (scale, add, drain)))
    for more in faults:
        plan = Plan(*map(_joined, plan, more)) if isinstance(more, Plan) else plan
    check_faults(plan, graph)
    given: dict[str, Any] = {"seed": seed, "schedule": schedule, "collective": collective, "until": until}
    given |= {"scale": scale, "add": add, "drain": drain, "params": params, "properties": properties}
    given |= {"always": always, "eventually": eventually, "sometimes": sometimes}
    note_for_hypothesis(topology, compiled, faults, given)
    with untraced():
        simulation = Simulation(graph, plan, seed=seed, schedule=schedule, checks="paced", properties=demanded)
        return simulation.run(parse_duration(until) if until is not None else None)


def _joined(some: tuple[Any, ...], more: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*some, *more)


def _demanded(topology: object, file: str | Path | None, given: Properties) -> Properties:
    """By the test, and by the file that is named or stands beside the topology."""
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
    """The job succeeds, every fault fires, and what it costs stays within bounds.

    Args:
        within: Each incident's worlds step again after so long at most: `"30s"`.
        lost_work: Of any world, at most.
        goodput: At least this share of the time of the replicas of tasks is productive, 0 to 1.
        charged: How many incidents the budgets of these roles were charged for, exactly.
        same_state: What the models of its roles did is what they do without faults: see `assert_same_result`.
        options: As of `simulate`; what is given as `sometimes` has to be reached.

    Raises:
        AssertionError: with all that is not so, and the command that shows it again.
        FlowdistError: as of `simulate`, and for a role in `charged` that is not there.
    """
    __tracebackhide__ = True  # of pytest: what is not so says more than where that was noticed
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
    points = properties_of(sometimes=options.get("sometimes", ())).sometimes  # a file's are for campaigns
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
    """Resume logic is right: after these faults all is as it is without them.

    Compared is what the models of the roles (`simulate=`) did, with a run of the same seed and without faults: each
    sample was used as often in the history that counts, rank 0 has logged the same in every step, and the states of all
    at the end are the same.

    Args:
        faults: In the fault grammar; each has to fire.
        options: As of `simulate`.

    Raises:
        AssertionError: with the first difference, and the command that shows it again; also when the job does not
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
    """User code does the same when it runs again: no clock, no randomness but `ctx.random`.

    Args:
        faults, options: As of `simulate`.

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
    """Whatever the topology promises to survive, seed by seed; where roles have models, with the result it has anyway.

    Args:
        seeds: How many, from 1; or which.
        jobs: Processes to use.
        strict: An exception of user code is a failure, whatever the topology makes of it.
        params: Of a topology file that is a function.
        always, eventually, sometimes, properties: As of `simulate`. Each point has to be reached by some run.
        recovers_within: In every run the worlds of each incident step again after so long at most.
        lost_work: Of any world of any run, at most.
        goodput: In every run at least this share of the time of the replicas of tasks is productive, 0 to 1.
        cover: The built-in points that faults can bring about in this topology have to be reached, too.
        corpus: A file that keeps what fails; what failed before is tried first, the seed and the plan.

    Returns:
        The report: `coverage` (faults by kind and phase), `points` (in how many runs each was seen), `recoveries`.

    Raises:
        AssertionError: with the shortest plan of faults of each failure and the command that shows it again, or with
            the points that no run reached.
        FlowdistError: for bounds, properties or a corpus that cannot be read.
    """
    __tracebackhide__ = True
    chosen = range(1, seeds + 1) if isinstance(seeds, int) else seeds
    demanded = _demanded(topology, properties, properties_of(always, eventually, sometimes))
    bounds = bounds_of(recovers_within, lost_work, goodput)
    kept = Corpus(Path(corpus)) if corpus is not None else None
    known = kept.open() if kept is not None else []
    chosen = list(dict.fromkeys([*(one.seed for one in known), *chosen]))
    asked: dict[str, Any] = {"strict": strict, "properties": demanded, "bounds": bounds, "known": known}
    report = campaign(graph_of(topology, params), chosen, jobs=jobs, **asked)
    if kept is not None:
        kept.keep(report.failures)
    more = bound_words(recovers_within, lost_work, goodput)
    lines: list[str] = []
    if report.stopped == "interrupted":
        raise KeyboardInterrupt
    kinds = kinds_of(report.failures)
    for failure, alike in kinds[:5]:
        lines += [f"{seeds_text(failure, alike)}: {failure.property}: {failure.text}"]
        lines += [f"  shortest plan: {', '.join(failure.faults) or 'none: it fails without a fault'}"]
        lines += [f"  {failure.divergence}"] if failure.divergence else []
        words = [*words_of({"params": params, "properties": properties}), *more]
        if isinstance(topology, str | Path):
            lines += [f"  again: {replay_command(str(topology), words, failure)}"]
    if lines:
        more_kinds = [f"... and {len(kinds) - 5} kinds of failures more"] if len(kinds) > 5 else []
        lines = [f"{len(report.failures)} of {report.seeds} seeds fail", *lines, *more_kinds]
    missed = [] if report.stopped else report.never_seen + (report.never_reached if cover else [])
    if missed:
        lines += [f"never seen in {report.seeds} seeds: {', '.join(missed)}"]
    if lines:
        raise AssertionError("\n".join(lines))
    return report
