"""Scenarios for a lab: which of them it can play, their plans without the time in which nothing happens, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowdist.cli.simulate.simulate import _flat as flat_settings
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import StartReplica
from flowdist.dsl.load import load_topology
from flowdist.faults.files import plan_of_scenario
from flowdist.faults.grammar import Fault, NodeOrder, Plan, Scale, When
from flowdist.faults.scenario import Scenario, load_scenario
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import Line, Record
from flowdist.report.record.summary import summary_of
from flowdist.sim.simulation import Simulation, with_nodes

FOLDER = Path(__file__).parents[2] / "scenarios"
QUIET_NS = 36 * SECOND  # longer than `cooldown` (30 s), the longest timer of these scenarios, and than a lease
LEAD_NS = 10 * SECOND  # from the first world to the first fault: longer than the simulated start of a worker
KINDS = ("kill", "lost", "leave", "preempt", "pause", "partition", "cut-to", "delay", "drop", "exit")
WHY_NOT = {  # of what a lab cannot play: why
    "rates": "its faults are drawn over hours",
    "collective": "how peers fail with their process group is simulated user code",
    "rejoin_time": "its workers stay in place, which `sleep inf` cannot",
    "ready_when": "its program, `sleep inf`, serves no port",
    "where": "a host that joins brings no labels",
    "snapshots": "its program, `sleep inf`, takes no snapshots",
    "succeeded": "its program, `sleep inf`, never finishes by itself",
    "roles": "one of its roles finishes before another, which `sleep inf` never does",
    "cpu": "its nodes have more cores than a host of the lab, which has one",
    "kind": "a lab has no {kind} of a {what}",
}


class Story(NamedTuple):
    """One scenario, with its plan without the time in which nothing happens."""

    name: str
    scenario: Scenario
    graph: RoleGraph
    plan: Plan

    @property
    def nodes(self) -> list[str]:
        """The names of all hosts: those of the topology, in order, and those that the plan adds."""
        return [*(node.name for node in self.graph.cluster.nodes), *self.plan.new_nodes]

    @property
    def options(self) -> list[str]:
        """The options of `flowdist run`: the scenario's, and one node more, which the controller's host brings."""
        words = [word for name, value in self.scenario.params.items() for word in ("-p", f"{name}={value}")]
        words += [word for name, value in flat_settings(self.scenario.set) for word in ("--set", f"{name}={value}")]
        nodes = len(self.graph.cluster.nodes)
        return [*words, "--nodes", f"{nodes}:{nodes + 1}"]


def read_story(path: Path) -> Story:
    scenario = load_scenario(path)
    params = {name: str(value) for name, value in scenario.params.items()}
    sets = [f"{name}={value}" for name, value in flat_settings(scenario.set)]
    nodes = str(scenario.nodes) if scenario.nodes is not None else None
    loaded = load_topology(str(path.parent / scenario.topology), params, sets, nodes)
    return Story(path.stem, scenario, with_nodes(loaded.graph), without_quiet(plan_of_scenario(path)))


def simulate(story: Story) -> Decisions:
    """Play the scenario in the simulator, and return the decisions.

    Raises:
        AssertionError: An invariant was violated, or a fault has hit nothing.
    """
    result = Simulation(story.graph, story.plan, seed=story.scenario.seed).run()
    assert result.violation is None and not result.unfired, (result.violation, result.unfired)
    return decisions_of(result.job, result.lines, story.plan)


def why_not(story: Story) -> str:
    """Return why a lab cannot play the scenario; empty if it can."""
    if story.plan.rates:
        return WHY_NOT["rates"]
    settings = " ".join(name for name, _ in flat_settings(story.scenario.set))
    for word in ("collective", "rejoin_time"):
        if word in settings:
            return WHY_NOT[word]
    text = (FOLDER / story.scenario.topology).read_text()
    for word in ("ready_when", "where", "snapshots", "succeeded"):
        if f"{word}=" in text or f".{word}(" in text:
            return WHY_NOT[word]
    if len(story.graph.roles) > 1:
        return WHY_NOT["roles"]
    if any(node.cpu != 1 for node in story.graph.cluster.nodes):
        return WHY_NOT["cpu"]
    for fault in story.plan.faults:
        if fault.kind not in KINDS:
            return WHY_NOT["kind"].format(kind=fault.kind, what="worker" if fault.replica else "node")
    return ""


def without_quiet(plan: Plan) -> Plan:
    """Return the plan with every pause between two of its moments cut to QUIET_NS, and the first moment at LEAD_NS.

    A moment is the begin or end of a fault, or an order. The length of a delay is kept: much happens meanwhile.
    """
    times: dict[int, int] = {}
    before_ns, at_ns = 0, LEAD_NS
    for moment in moments(plan):
        at_ns += min(moment - before_ns, QUIET_NS) if times else 0
        before_ns = moment
        times[moment] = at_ns
    return _with_times(plan, times)


def shifted(plan: Plan, by_ns: int) -> Plan:
    """Return the plan with all its times later by so many ns."""
    return _with_times(plan, {moment: moment + by_ns for moment in moments(plan)})


def moments(plan: Plan) -> list[int]:
    """Return the times of all begins and ends of faults, and of all orders, in ns; without those that are not known."""
    orders: list[Scale | NodeOrder] = [*plan.scales, *plan.adds, *plan.drains]
    return sorted({order.at_ns for order in orders} | {at for fault in plan.faults for at in _span(fault)})


def _span(fault: Fault) -> Iterator[int]:
    """Yield begin and end of a fault, if it has them."""
    if fault.when.at_ns is not None:
        yield (begin := fault.when.at_ns + fault.offset_ns)
        if fault.duration_ns is not None and fault.kind != "delay":
            yield begin + fault.duration_ns


def _with_times(plan: Plan, times: dict[int, int]) -> Plan:
    return plan._replace(
        faults=tuple(_moved(fault, times) for fault in plan.faults),
        scales=tuple(scale._replace(at_ns=times[scale.at_ns]) for scale in plan.scales),
        adds=tuple(add._replace(at_ns=times[add.at_ns]) for add in plan.adds),
        drains=tuple(drain._replace(at_ns=times[drain.at_ns]) for drain in plan.drains),
    )


def _moved(fault: Fault, times: dict[int, int]) -> Fault:
    if fault.when.at_ns is None:
        return fault
    begin, *end = [times[moment] for moment in _span(fault)]
    duration_ns = end[0] - begin if end else fault.duration_ns
    return fault._replace(when=When(at_ns=begin), offset_ns=0, duration_ns=duration_ns)


class Decisions(NamedTuple):
    """What the controller decided in one run."""

    outcome: str | None
    incidents: list[tuple[Any, ...]]
    roles: dict[str, Any]
    worlds: dict[str, list[int]]

    def differences(self, other: Decisions) -> list[str]:
        """Return what differs between these decisions, of the simulator, and others, of the lab."""
        pairs = zip(self._fields, self, other, strict=True)
        return [f"{name}: simulated {own}, in the lab {found}" for name, own, found in pairs if own != found]


def decisions_of(job: JobState, lines: Sequence[Line], plan: Plan) -> Decisions:
    """Return the decisions of a job.

    Whether a first step came before the next fault is a matter of pace, and no decision. Neither is which of several
    workers is heard first, if the plan hits them at the same moment.
    """
    summary = summary_of(job, lines)
    at_once = _hit_at_once(plan)
    incidents = [
        (
            one["kind"],
            at_once.get(one["root"], one["root"]),
            *sorted(one["restarted"]),
            one["charged_to"],
            _result(one["result"]),
        )
        for one in summary["incidents"]
    ]
    keys = ("outcome", "charged", "generations", "replicas")
    roles = {name: {key: role[key] for key in keys} for name, role in summary["roles"].items()}
    return Decisions(job.outcome, incidents, roles, worlds_of(lines))


def _hit_at_once(plan: Plan) -> dict[str, str]:
    """Return the replicas that a plan hits together with others, each with the names of all of them."""
    together: dict[int, list[str]] = {}
    for fault in plan.faults:
        if fault.replica is not None and fault.when.at_ns is not None:
            together.setdefault(fault.when.at_ns + fault.offset_ns, []).append(fault.target)
    return {target: " or ".join(group) for group in together.values() if len(group) > 1 for target in group}


def _result(text: str) -> str:
    return text.replace("recovered", "re-formed")


def worlds_of(lines: Iterable[Line]) -> dict[str, list[int]]:
    """Return the number of replicas in each generation of each world, in their order."""
    sizes: dict[str, dict[int, int]] = {}
    for line in lines:
        for effect in line.effects if isinstance(line, Record) else ():
            if isinstance(effect, StartReplica):
                sizes.setdefault(effect.world, {})[effect.generation] = effect.group_world_size
    return {world: list(generations.values()) for world, generations in sorted(sizes.items())}
