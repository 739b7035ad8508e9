"""The nemesis: it draws a plan of faults from a seed, of only what the topology declares that it survives.

Each seed favours some kinds of faults, so that a campaign sees runs full of one kind as well as mixtures. Each fault
counts against what is declared: the budget of a role, room for the minima, the changes in a row that R8 allows. So a
job that fails under such a plan has broken a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.faults.streams import draw
from flowdist.graph import MS, SECOND, RestartPolicy, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import fits, needed, offered, subtract
from flowdist.sim.faults.aiming import Aim
from flowdist.sim.user_code.loading import load_model
from flowdist.sim.workers.collectives import says_nothing

FAULTS_MAX = 6
DAMAGES = ("torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint")
AIMED = 0.3  # the part of faults at any time that is aimed, where gangs save
READS = 0.6  # the part of faults after a fault that is aimed, where gangs restore
ZOMBIES = 0.1  # the part of all faults, where user code saves
DISK_FULL = "disk-full/1m"
WHOLE_GANGS = 0.15  # the part of failures of gangs that hits all members
CORRELATED = 0.25  # the part of node faults that hits all nodes with a label
COLLECTIVES = ("", "fail", "hang")
NODE_FAULTS_MAX = 3  # each may be two changes of membership in a row, which R8 limits
NOTICE_S = 30  # the notice of preemptions
REJOIN_S = 5  # the most that a node takes to join after it is back


class Tolerance(NamedTuple):
    """The faults that a job has to survive, as far as a plan has not used them."""

    budgets: dict[str, int]  # failures of replicas, by role
    nodes: int  # losses of a node


def tolerance_of(graph: RoleGraph) -> Tolerance:
    """Return what the policies and sizes of a graph promise.

    A role that does not restart after a signal has no budget.
    """
    budgets = {spec.name: _budget(spec) for spec in graph.roles}
    many = len(graph.cluster.nodes) > 1
    return Tolerance(budgets, NODE_FAULTS_MAX if many and all(_bears_a_lost_node(spec) for spec in graph.roles) else 0)


def _budget(spec: RoleSpec) -> int:
    policy = spec.restart
    if policy is None or _action(policy, "signal") != "restart":
        return 0
    return policy.max_restarts + (policy.wider.max_restarts if policy.wider is not None else 0)


def _action(policy: RestartPolicy, kind: str, exit: int | None = None) -> str:
    for rule in policy.rules:
        if rule.kind in (None, kind) and rule.exit in (None, exit) and rule.signal in (None, "KILL"):
            return rule.do
    return "restart"


def _end(spec: RoleSpec, seed: int, n: int) -> str:
    """Draw how a worker ends, of the ways after which it restarts: mostly a kill, else oom or an exit code."""
    assert spec.restart is not None
    which = draw(seed, "nemesis", "end", n)
    code = 1 + int(draw(seed, "nemesis", "code", n) * 100)
    if which < 0.15 and _action(spec.restart, "oom") == "restart":
        return ":oom"
    if 0.15 <= which < 0.4 and _action(spec.restart, "exit", exit=code) == "restart":
        return f":exit={code}"
    return ""


def _bears_failing_peers(graph: RoleGraph, spec: RoleSpec) -> bool:
    """Return whether workers of the role may exit with code 1 because a peer of their world is gone."""
    if spec.restart is None:  # losing a node is free, but a peer of a joint world that restarts would end the job
        return graph.world_of(spec.name) is None
    return _action(spec.restart, "exit", exit=1) == "restart"


def _bears_a_lost_node(spec: RoleSpec) -> bool:
    return spec.restart is None or _action(spec.restart, "node_lost") == "restart"


class Nemesis:
    """Drawn plans for one topology.

    Args:
        graph: The job, with its nodes.
        horizon_ns: How long it takes without faults.
        saves: Times in which user code saves. Half of the faults come then.
    """

    def __init__(self, graph: RoleGraph, horizon_ns: int, saves: Sequence[tuple[int, int]] = ()) -> None:
        self._graph, self._horizon_ns, self._saves = graph, horizon_ns, saves
        self._tolerance, self._aim = tolerance_of(graph), Aim(graph)
        self._labels = list(dict.fromkeys("=".join(label) for node in graph.cluster.nodes for label in node.labels))
        waits_ns = min(spec.pending_timeout_ns for spec in graph.roles)
        self._patience_s = waits_ns // NODE_FAULTS_MAX // SECOND - REJOIN_S  # another node may be away

    def plan(self, seed: int) -> Plan:
        """Return the plan of a seed, in the order of time."""
        budgets, nodes = dict(self._tolerance.budgets), self._tolerance.nodes
        count = 1 + int(draw(seed, "nemesis", "count") * FAULTS_MAX)
        favoured = draw(seed, "nemesis", "favoured")
        faults: list[Fault] = []
        for n in range(count):
            at = self._time(seed, n, faults)
            if self._saves and nodes > 0 and draw(seed, "nemesis", "zombie", n) < ZOMBIES:
                faults += self._zombie(seed, n, budgets)
                nodes -= 1
                continue
            kind = self._kind(seed, n, favoured)
            text = None
            if kind == "replica":
                text = self._replica_fault(seed, n, budgets)
            elif kind == "node" and nodes > 0:
                text = self._node_fault(seed, n, (fault.target for fault in faults))
                nodes -= text is not None
            elif kind == "controller":
                text = "controller@{at}"
            elif kind == "harmless":
                text = self._harmless(seed, n)
            elif kind == "order" and nodes > 0:  # changes the membership, as a loss does
                text = self._order(seed, n, {fault.target for fault in faults if fault.kind == "drain"})
                nodes -= text is not None
            if text is not None:
                faults.append(parse_fault(text.replace("{at}", format_duration(at))))
            if text is not None and faults[-1].kind in DAMAGES and self._saves:  # and a restart has to read it soon
                then = at + int(draw(seed, "nemesis", "read", n) * 8 * SECOND)
                faults += self._replica_killed(seed, n, budgets, then)
        return Plan(tuple(faults))

    def collective(self, seed: int) -> str:
        """Return what happens to the peers of a dead worker in the run of this seed; empty: as the topology says."""
        silent = [spec for spec in self._graph.roles if says_nothing(spec)]
        if not any(spec.gang for spec in silent):
            return ""
        drawn = COLLECTIVES[int(draw(seed, "nemesis", "collective") * len(COLLECTIVES))]
        bears = all(_bears_failing_peers(self._graph, spec) for spec in silent)
        return drawn if bears or drawn != "fail" else ""

    def _time(self, seed: int, n: int, before: list[Fault]) -> int:
        """Return the time of a fault: anywhere in the run or, one time in three, right after the fault before.

        Some of either are aimed at a checkpoint that is being written or read.
        """
        last = before[-1].when.at_ns if before else None
        if last is not None and draw(seed, "nemesis", "close", n) < 0.33:
            lasts = before[-1].duration_ns if self._saves and draw(seed, "nemesis", "after", n) < 0.5 else 0
            at = last + (lasts or 0) + int(draw(seed, "nemesis", "gap", n) * 8 * SECOND)
            reads = self._aim.restoring(seed, n, before[-1]) if draw(seed, "nemesis", "reads", n) < READS else None
            at = at if reads is None else reads
        elif self._saves and draw(seed, "nemesis", "aim", n) < 0.5:
            begin, end = self._saves[int(draw(seed, "nemesis", "save", n) * len(self._saves))]
            at = begin + int(draw(seed, "nemesis", "in it", n) * (end - begin))
        else:
            is_aimed = draw(seed, "nemesis", "aimed", n) < AIMED
            saves = self._aim.saving(seed, n, before[-1] if before else None) if is_aimed else None
            at = int(draw(seed, "nemesis", "at", n) * self._horizon_ns) if saves is None else saves
        return at // MS * MS

    def _kind(self, seed: int, n: int, favoured: float) -> str:
        kinds = ("replica", "node", "controller", "harmless", "order")
        if draw(seed, "nemesis", "swarm", n) < 0.5:
            return kinds[int(favoured * len(kinds))]
        return kinds[int(draw(seed, "nemesis", "kind", n) * len(kinds))]

    def _zombie(self, seed: int, n: int, budgets: dict[str, int]) -> list[Fault]:
        """Return a pause of a node while it saves, until it was replaced, and a failure after it resumes."""
        begin, end = self._saves[int(draw(seed, "nemesis", "save", n) * len(self._saves))]
        at = (begin + int(draw(seed, "nemesis", "in it", n) * (end - begin))) // MS * MS
        options, nodes = self._graph.options, self._graph.cluster.nodes
        node = nodes[int(draw(seed, "nemesis", "node", n) * len(nodes))].name
        lasts = options.lease_ns + options.lease_margin_ns + int((3 + draw(seed, "nemesis", "back", n) * 40) * SECOND)
        then = at + lasts + int(draw(seed, "nemesis", "gap", n) * 8 * SECOND)
        paused = f"{node}@{format_duration(at)}:pause/{format_duration(lasts // MS * MS)}"
        return [parse_fault(paused), *self._replica_killed(seed, n, budgets, then)]

    def _replica_killed(self, seed: int, n: int, budgets: dict[str, int], at: int) -> list[Fault]:
        """Return a failure of a replica at a time in ns, rounded down to ms; none if no budget is left."""
        text = self._replica_fault(seed, n, budgets)
        return [parse_fault(text.replace("{at}", format_duration(at // MS * MS)))] if text else []

    def _replica_fault(self, seed: int, n: int, budgets: dict[str, int]) -> str | None:
        roles = [spec for spec in self._graph.roles if budgets[spec.name] > 0]
        if not roles:
            return None
        spec = roles[int(draw(seed, "nemesis", "role", n) * len(roles))]
        budgets[spec.name] -= 1
        replica = f"{spec.name}/{int(draw(seed, 'nemesis', 'replica', n) * spec.max_replicas)}"
        hangs = spec.hang_after_ns is not None and spec.kind == "task" and draw(seed, "nemesis", "hang", n) < 0.3
        if hangs and spec.restart is not None and _action(spec.restart, "hang") == "restart":
            return replica + "@{at}:hang"
        return (spec.name if self._hits_all(spec, seed, n) else replica) + "@{at}" + _end(spec, seed, n)

    def _hits_all(self, spec: RoleSpec, seed: int, n: int) -> bool:
        """Return whether all of a gang fail at once: it restarts as one, so that is one incident."""
        return spec.gang and draw(seed, "nemesis", "all of it", n) < WHOLE_GANGS

    def _node_fault(self, seed: int, n: int, before: Iterable[str]) -> str | None:
        """Return the loss of a node, which comes back while roles without room elsewhere still wait for it."""
        nodes = self._graph.cluster.nodes
        target = nodes[int(draw(seed, "nemesis", "node", n) * len(nodes))].name
        if self._labels and draw(seed, "nemesis", "correlated", n) < CORRELATED:
            target = self._labels[int(draw(seed, "nemesis", "label", n) * len(self._labels))]
        back_s = int(5 + draw(seed, "nemesis", "back", n) * 55)
        kinds = ("", ":lost", ":preempt=30s", ":pause", ":partition=controller", ":cut-to=controller", ":leave")
        kind = kinds[int(draw(seed, "nemesis", "how", n) * len(kinds))]
        most_s = self._patience_s - (NOTICE_S if "preempt" in kind else 0)
        if back_s > most_s and not self._has_room_without(self._nodes_of([target, *before])):
            back_s = most_s  # otherwise the job may fail, as R12 says
        return f"{target}@{{at}}{kind}/{back_s}s" if back_s > 0 else None

    def _nodes_of(self, targets: Iterable[str]) -> set[str]:
        """Return the nodes that these names and labels mean."""
        hit = set(targets)
        nodes = self._graph.cluster.nodes
        return {node.name for node in nodes if hit.intersection((node.name, *map("=".join, node.labels)))}

    def _order(self, seed: int, n: int, drained: set[str]) -> str | None:
        """Return an order of the operator: scale a role within its bounds, add a node, or drain one."""
        nodes = self._graph.cluster.nodes
        which = draw(seed, "nemesis", "order", n)
        if which < 0.3:
            return f"extra{n}@{{at}}:add"
        if which < 0.6:
            name = nodes[int(draw(seed, "nemesis", "drained", n) * len(nodes))].name
            return f"{name}@{{at}}:drain" if self._has_room_without({*drained, name}) else None
        elastic = [spec for spec in self._graph.roles if spec.gang and spec.min_replicas < spec.max_replicas]
        if not elastic:
            return None
        spec = elastic[int(draw(seed, "nemesis", "scaled", n) * len(elastic))]
        span = spec.max_replicas - spec.min_replicas + 1
        return f"{spec.name}@{{at}}:scale={spec.min_replicas + int(draw(seed, 'nemesis', 'scale', n) * span)}"

    def _has_room_without(self, names: set[str]) -> bool:
        """Return whether all minima fit on the other nodes, since a drained node never comes back.

        A gang gives up what it has above its minimum when it forms anew; other replicas keep their seats. False where
        placement is constrained, since the answer is not known then.
        """
        free = [offered(node) for node in self._graph.cluster.nodes if node.name not in names]
        for spec in self._graph.roles:
            if spec.placement.near or spec.placement.apart or spec.placement.where:
                return False
            for _ in range(spec.min_replicas if spec.gang else spec.max_replicas):
                at = next((i for i, room in enumerate(free) if fits(needed(spec.resources), room)), None)
                if at is None:
                    return False
                free[at] = subtract(free[at], needed(spec.resources))
        return True

    def _harmless(self, seed: int, n: int) -> str | None:
        tasks = [spec for spec in self._graph.roles if spec.kind == "task"]
        nodes = self._graph.cluster.nodes
        spec = tasks[int(draw(seed, "nemesis", "task", n) * len(tasks))]
        node = nodes[int(draw(seed, "nemesis", "link", n) * len(nodes))].name
        delay = format_duration(self._graph.options.lease_ns // 10)
        choices = (
            f"{node}@{{at}}:delay={delay}/30s",
            # each silence is shorter than a lease
            f"{node}@{{at}}:flap={format_duration(self._graph.options.lease_ns // 8)}/30s",
            f"{node}@{{at}}:drop=0.2/30s",
            f"{node}@{{at}}:duplicate=0.3/30s",
            f"{node}@{{at}}:reorder=0.3/30s",
            f"{spec.name}/0@{{at}}:slow=2x/30s",
            *(f"{spec.name}@{{at}}:{fate}" for fate in self._fates(spec)),
        )
        return choices[int(draw(seed, "nemesis", "which", n) * len(choices))]

    def _fates(self, spec: RoleSpec) -> tuple[str, ...]:
        """Return the faults that the checkpoints of a role tolerate. User code says so itself."""
        if not spec.simulate:
            return (DISK_FULL, "torn-checkpoint")
        tolerates = getattr(load_model(self._graph, spec), "tolerates", ())
        return ("slow-checkpoint=10x/1m", *(DISK_FULL if fate == "disk-full" else fate for fate in tolerates))
