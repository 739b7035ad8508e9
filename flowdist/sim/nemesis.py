"""What draws a plan of faults from a seed: only what the topology, by its own words, has to survive.

Each seed favours some kinds of faults over others, so that a campaign sees runs full of one kind as well as mixtures.
A fault counts against what is declared: the budget of a role, room for the minima, the row of changes that R8 allows.
So a job that fails under such a plan has broken a promise.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.faults import Fault, Plan, parse_fault
from flowdist.graph import SECOND, RestartPolicy, RoleGraph, RoleSpec, format_duration
from flowdist.sim.streams import draw

FAULTS_MAX = 6
NODE_FAULTS_MAX = 3  # each may be two changes of membership in a row (R8)


class Tolerance(NamedTuple):
    """What is left of what the job has to survive."""

    budgets: dict[str, int]  # failures of replicas, by role
    nodes: int  # losses of a node


def tolerance_of(graph: RoleGraph) -> Tolerance:
    """By the policies and the sizes alone. A role whose rules do not restart what a signal ends has no budget here."""
    budgets = {spec.name: _budget(spec) for spec in graph.roles}
    many = len(graph.cluster.nodes) > 1
    return Tolerance(budgets, NODE_FAULTS_MAX if many and all(_bears_a_lost_node(spec) for spec in graph.roles) else 0)


def _budget(spec: RoleSpec) -> int:
    policy = spec.restart
    if policy is None or _action(policy, "signal") != "restart":
        return 0
    return policy.max_restarts + (policy.wider.max_restarts if policy.wider is not None else 0)


def _action(policy: RestartPolicy, kind: str) -> str:
    for rule in policy.rules:
        if rule.kind in (None, kind) and rule.exit is None and rule.signal in (None, "KILL"):
            return rule.do
    return "restart"


def _bears_a_lost_node(spec: RoleSpec) -> bool:
    return spec.restart is None or _action(spec.restart, "node_lost") == "restart"


class Nemesis:
    """The plans of one topology. `horizon_ns` is how long it would take if nothing went wrong."""

    def __init__(self, graph: RoleGraph, horizon_ns: int) -> None:
        self._graph, self._horizon_ns = graph, horizon_ns
        self._tolerance = tolerance_of(graph)

    def plan(self, seed: int) -> Plan:
        """That seed's, in the order of time."""
        budgets, nodes = dict(self._tolerance.budgets), self._tolerance.nodes
        count = 1 + int(draw(seed, "nemesis", "count") * FAULTS_MAX)
        favoured = draw(seed, "nemesis", "favoured")
        faults: list[Fault] = []
        for n in range(count):
            at = self._time(seed, n, faults)
            kind = self._kind(seed, n, favoured)
            text = None
            if kind == "replica":
                text = self._replica_fault(seed, n, budgets)
            elif kind == "node" and nodes > 0:
                text = self._node_fault(seed, n)
                nodes -= text is not None
            elif kind == "controller":
                text = "controller@{at}"
            elif kind == "harmless":
                text = self._harmless(seed, n)
            elif kind == "order" and nodes > 0:  # a change of membership, like a loss
                text = self._order(seed, n)
                nodes -= text is not None
            if text is not None:
                faults.append(parse_fault(text.replace("{at}", format_duration(at))))
        return Plan(tuple(faults))

    def _time(self, seed: int, n: int, before: list[Fault]) -> int:
        """Somewhere in the run; or, one time in three, right after the fault before: in the middle of its recovery."""
        last = before[-1].when.at_ns if before else None
        if last is not None and draw(seed, "nemesis", "close", n) < 0.33:
            at = last + int(draw(seed, "nemesis", "gap", n) * 8 * SECOND)
        else:
            at = int(draw(seed, "nemesis", "at", n) * self._horizon_ns)
        return at // 1_000_000 * 1_000_000

    def _kind(self, seed: int, n: int, favoured: float) -> str:
        kinds = ("replica", "node", "controller", "harmless", "order")
        if draw(seed, "nemesis", "swarm", n) < 0.5:
            return kinds[int(favoured * len(kinds))]
        return kinds[int(draw(seed, "nemesis", "kind", n) * len(kinds))]

    def _replica_fault(self, seed: int, n: int, budgets: dict[str, int]) -> str | None:
        roles = [spec for spec in self._graph.roles if budgets[spec.name] > 0]
        if not roles:
            return None
        spec = roles[int(draw(seed, "nemesis", "role", n) * len(roles))]
        budgets[spec.name] -= 1
        replica = f"{spec.name}/{int(draw(seed, 'nemesis', 'replica', n) * spec.max_replicas)}"
        hangs = spec.hang_after_ns is not None and spec.kind == "task" and draw(seed, "nemesis", "hang", n) < 0.3
        may_hang = hangs and spec.restart is not None and _action(spec.restart, "hang") == "restart"
        return replica + "@{at}" + (":hang" if may_hang else "")

    def _node_fault(self, seed: int, n: int) -> str:
        nodes = self._graph.cluster.nodes
        node = nodes[int(draw(seed, "nemesis", "node", n) * len(nodes))].name
        back = format_duration(int(5 + draw(seed, "nemesis", "back", n) * 55) * SECOND)
        kinds = ("", ":lost", ":preempt=30s", ":pause", ":partition=controller", ":cut-to=controller")
        kind = kinds[int(draw(seed, "nemesis", "how", n) * len(kinds))]
        return f"{node}@{{at}}{kind}/{back}"

    def _order(self, seed: int, n: int) -> str | None:
        """What the operator does, or the cluster: a role is scaled within its bounds, a node is added or drained."""
        nodes = self._graph.cluster.nodes
        which = draw(seed, "nemesis", "order", n)
        if which < 0.3:
            return f"extra{n}@{{at}}:add"
        if which < 0.6:
            return f"{nodes[int(draw(seed, 'nemesis', 'drained', n) * len(nodes))].name}@{{at}}:drain"
        elastic = [spec for spec in self._graph.roles if spec.gang and spec.min_replicas < spec.max_replicas]
        if not elastic:
            return None
        spec = elastic[int(draw(seed, "nemesis", "scaled", n) * len(elastic))]
        span = spec.max_replicas - spec.min_replicas + 1
        return f"{spec.name}@{{at}}:scale={spec.min_replicas + int(draw(seed, 'nemesis', 'scale', n) * span)}"

    def _harmless(self, seed: int, n: int) -> str | None:
        tasks = [spec for spec in self._graph.roles if spec.kind == "task"]
        nodes = self._graph.cluster.nodes
        spec = tasks[int(draw(seed, "nemesis", "task", n) * len(tasks))]
        node = nodes[int(draw(seed, "nemesis", "link", n) * len(nodes))].name
        delay = format_duration(self._graph.options.lease_ns // 10)
        choices = (
            f"{node}@{{at}}:delay={delay}/30s",
            f"{node}@{{at}}:flap={format_duration(self._graph.options.lease_ns // 8)}/30s",  # each silence is short
            f"{node}@{{at}}:drop=0.2/30s",
            f"{node}@{{at}}:duplicate=0.3/30s",
            f"{node}@{{at}}:reorder=0.3/30s",
            f"{spec.name}/0@{{at}}:slow=2x/30s",
            f"{spec.name}@{{at}}:disk-full/1m",
            f"{spec.name}@{{at}}:torn-checkpoint",
        )
        return choices[int(draw(seed, "nemesis", "which", n) * len(choices))]
