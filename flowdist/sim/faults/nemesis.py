"""The nemesis: it draws a plan of faults from a seed, with only such faults as the topology declares to survive.

Each seed favours one kind of fault, so that a campaign sees runs full of one kind as well as mixtures. Each fault
counts against what the topology declares: the budget of a role, room for the minima, the membership changes in a row
that R8 allows. So a job that fails under such a plan has broken a promise.
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

FAULTS_MAX = 6  # how many faults are drawn for a plan at most; some bring a second one
DAMAGES = ("torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint")
# Shares of faults, from 0 to 1.
AIMED = 0.3  # of the faults at a random time: moved into the writing of a checkpoint, where gangs save
READS = 0.6  # of the faults soon after another fault: moved into the reading of a checkpoint, where gangs read one
EARLY = 0.15  # of the plans, where user code saves: the first fault comes before the first checkpoint
ZOMBIES = 0.1  # of all faults, where user code saves: a pause of a node that is replaced meanwhile
DISK_FULL = "disk-full/1m"
WHOLE_GANGS = 0.15  # of the failures of gangs: hit all members
CORRELATED = 0.25  # of the node faults: hit all nodes with a label
COLLECTIVES = ("", "fail", "hang")
NODE_FAULTS_MAX = 3  # each may be two changes of membership in a row, which R8 limits
NOTICE_S = 30  # the notice of preemptions
REJOIN_S = 5  # the longest time from a node's return to its join


class Tolerance(NamedTuple):
    """Numbers of faults that a job has to survive, by kind."""

    budgets: dict[str, int]  # failures of replicas, by role
    nodes: int  # losses of a node, drains and other orders that change the membership


def tolerance_of(graph: RoleGraph) -> Tolerance:
    """Return how many faults a job with this graph has to survive, as its restart policies promise.

    A role that does not restart after SIGKILL survives no failure of a replica. Losses of nodes are survived only if
    there are several nodes and each role restarts after the loss of one, and then no more than `NODE_FAULTS_MAX`.
    """
    budgets = {spec.name: _budget(spec) for spec in graph.roles}
    many = len(graph.cluster.nodes) > 1
    return Tolerance(budgets, NODE_FAULTS_MAX if many and all(_bears_a_lost_node(spec) for spec in graph.roles) else 0)


def _budget(spec: RoleSpec) -> int:
    """Return for how many kills of a replica the role's budget and its wider one pay; 0 if a kill is no restart."""
    policy = spec.restart
    if policy is None or _action(policy, "signal") != "restart":
        return 0
    return policy.max_restarts + (policy.wider.max_restarts if policy.wider is not None else 0)


def _action(policy: RestartPolicy, kind: str, exit: int | None = None) -> str:
    """Return what the rules of a policy do about a failure: "restart", "fail" or "ignore". A signal is SIGKILL."""
    for rule in policy.rules:
        if rule.kind in (None, kind) and rule.exit in (None, exit) and rule.signal in (None, "KILL"):
            return rule.do
    return "restart"


def _end(spec: RoleSpec, seed: int, n: int) -> str:
    """Draw how a worker ends, as the end of a fault's text: ":oom", ":exit=3", or mostly empty for a kill.

    Only ways after which the role restarts are drawn; `_budget` has checked that for a kill.
    """
    assert spec.restart is not None
    which = draw(seed, "nemesis", "end", n)
    code = 1 + int(draw(seed, "nemesis", "code", n) * 100)
    if which < 0.15 and _action(spec.restart, "oom") == "restart":
        return ":oom"
    if 0.15 <= which < 0.4 and _action(spec.restart, "exit", exit=code) == "restart":
        return f":exit={code}"
    return ""


def _bears_failing_peers(graph: RoleGraph, spec: RoleSpec) -> bool:
    """Return whether the job survives that workers of the role exit with code 1 because a peer in their world died."""
    if spec.restart is None:  # losing a node is free, but a peer of a joint world that restarts would end the job
        return graph.world_of(spec.name) is None
    return _action(spec.restart, "exit", exit=1) == "restart"


def _bears_a_lost_node(spec: RoleSpec) -> bool:
    return spec.restart is None or _action(spec.restart, "node_lost") == "restart"


class Nemesis:
    """Source of drawn plans for one topology: `plan` returns the same plan for the same seed.

    Args:
        graph: The job, with its nodes.
        horizon_ns: How long the job takes without faults, in ns.
        saves: Begin and end, in ns, of each checkpoint of user code in a run without faults. About half of the faults
            are drawn into these times, and the first fault of one plan in seven before the first of them.
        aims: False: no fault is moved to where a gang writes or reads a checkpoint, so that a comparison shows what
            aiming does.
    """

    def __init__(
        self, graph: RoleGraph, horizon_ns: int, saves: Sequence[tuple[int, int]] = (), *, aims: bool = True
    ) -> None:
        self._graph, self._horizon_ns, self._saves = graph, horizon_ns, saves
        self._aimed, self._reads = (AIMED, READS) if aims else (0.0, 0.0)
        self._tolerance, self._aim = tolerance_of(graph), Aim(graph)
        self._labels = list(dict.fromkeys("=".join(label) for node in graph.cluster.nodes for label in node.labels))
        # A role waits `pending_timeout` for nodes. All node faults of a plan together have to fit into that.
        waits_ns = min(spec.pending_timeout_ns for spec in graph.roles)
        self._patience_s = waits_ns // NODE_FAULTS_MAX // SECOND - REJOIN_S

    def plan(self, seed: int) -> Plan:
        """Return the plan of faults that the seed draws, in the order drawn, which need not be that of their times.

        A fault for which no budget or room is left is dropped, so the plan may be empty.
        """
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
            elif kind == "order" and nodes > 0:  # counts as a lost node, since it changes the membership, too
                text = self._order(seed, n, {fault.target for fault in faults if fault.kind == "drain"})
                nodes -= text is not None
            if text is not None:
                faults.append(parse_fault(text.replace("{at}", format_duration(at))))
            if text is not None and faults[-1].kind in DAMAGES and self._saves:  # a restart reads the damage soon after
                then = at + int(draw(seed, "nemesis", "read", n) * 8 * SECOND)
                faults += self._replica_killed(seed, n, budgets, then)
        return Plan(tuple(faults))

    def collective(self, seed: int) -> str:
        """Draw what the peers of a dead worker do in tasks whose workload does not say it (`collective=`).

        Returns:
            "fail" (only if the job survives that), "hang", or empty: they wait. Always empty if every gang says it.
        """
        silent = [spec for spec in self._graph.roles if says_nothing(spec)]
        if not any(spec.gang for spec in silent):
            return ""
        drawn = COLLECTIVES[int(draw(seed, "nemesis", "collective") * len(COLLECTIVES))]
        bears = all(_bears_failing_peers(self._graph, spec) for spec in silent)
        return drawn if bears or drawn != "fail" else ""

    def _time(self, seed: int, n: int, before: list[Fault]) -> int:
        """Draw the time of fault `n`, in ns and whole ms. `before` are the faults drawn so far.

        The first may come before the first checkpoint of user code, which a restart then does without: that takes a
        small part of most jobs. One in three of the others comes within 8 s of the last of these or its end, or is
        moved to where a gang reads its checkpoint because of it. Of the others, some are moved to where a checkpoint is
        written, and the rest is anywhere.
        """
        last = before[-1].when.at_ns if before else None
        if n == 0 and self._saves and draw(seed, "nemesis", "early") < EARLY:
            at = int(draw(seed, "nemesis", "at", n) * min(begin for begin, _ in self._saves))
        elif last is not None and draw(seed, "nemesis", "close", n) < 0.33:
            lasts = before[-1].duration_ns if self._saves and draw(seed, "nemesis", "after", n) < 0.5 else 0
            at = last + (lasts or 0) + int(draw(seed, "nemesis", "gap", n) * 8 * SECOND)
            is_aimed = draw(seed, "nemesis", "reads", n) < self._reads
            reads = self._aim.restoring(seed, n, before[-1]) if is_aimed else None
            at = at if reads is None else reads
        elif self._saves and draw(seed, "nemesis", "aim", n) < 0.5:
            begin, end = self._saves[int(draw(seed, "nemesis", "save", n) * len(self._saves))]
            at = begin + int(draw(seed, "nemesis", "in it", n) * (end - begin))
        else:
            is_aimed = draw(seed, "nemesis", "aimed", n) < self._aimed
            saves = self._aim.saving(seed, n, before[-1] if before else None) if is_aimed else None
            at = int(draw(seed, "nemesis", "at", n) * self._horizon_ns) if saves is None else saves
        return at // MS * MS

    def _kind(self, seed: int, n: int, favoured: float) -> str:
        """Draw the kind of fault `n`: one time in two that which `favoured` (0 to 1) selects for the whole plan."""
        kinds = ("replica", "node", "controller", "harmless", "order")
        if draw(seed, "nemesis", "swarm", n) < 0.5:
            return kinds[int(favoured * len(kinds))]
        return kinds[int(draw(seed, "nemesis", "kind", n) * len(kinds))]

    def _zombie(self, seed: int, n: int, budgets: dict[str, int]) -> list[Fault]:
        """Draw a pause of a node while user code saves, long enough for its loss, and a failure of a replica after it.

        So a node that has been replaced goes on with its old write. The failure, which makes a restart read the
        checkpoint, is left out if no budget is left for it.
        """
        begin, end = self._saves[int(draw(seed, "nemesis", "save", n) * len(self._saves))]
        at = (begin + int(draw(seed, "nemesis", "in it", n) * (end - begin))) // MS * MS
        options, nodes = self._graph.options, self._graph.cluster.nodes
        node = nodes[int(draw(seed, "nemesis", "node", n) * len(nodes))].name
        lasts = options.lease_ns + options.lease_margin_ns + int((3 + draw(seed, "nemesis", "back", n) * 40) * SECOND)
        then = at + lasts + int(draw(seed, "nemesis", "gap", n) * 8 * SECOND)
        paused = f"{node}@{format_duration(at)}:pause/{format_duration(lasts // MS * MS)}"
        return [parse_fault(paused), *self._replica_killed(seed, n, budgets, then)]

    def _replica_killed(self, seed: int, n: int, budgets: dict[str, int], at: int) -> list[Fault]:
        """Draw a failure of a replica at the time `at`, in ns, rounded down to ms; empty if no budget is left."""
        text = self._replica_fault(seed, n, budgets)
        return [parse_fault(text.replace("{at}", format_duration(at // MS * MS)))] if text else []

    def _replica_fault(self, seed: int, n: int, budgets: dict[str, int]) -> str | None:
        """Return the text of a drawn failure of a replica or a whole gang, with `{at}` where its time belongs.

        The failure is taken from its role's budget in `budgets`. None if no role has budget left.
        """
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
        """Draw whether all members of a gang fail at once, which is one incident; False for a role that is no gang."""
        return spec.gang and draw(seed, "nemesis", "all of it", n) < WHOLE_GANGS

    def _node_fault(self, seed: int, n: int, before: Iterable[str]) -> str | None:
        """Return the text of a drawn fault that takes a node, or all nodes with a label, away for a while.

        The text has `{at}` where the time belongs. If other nodes have no room for all roles, the node comes back
        before a role fails for want of nodes (R12). None if that leaves no time.

        Args:
            seed: The seed of the plan.
            n: The number of the fault.
            before: Targets of the faults before, whose nodes may be away at the same time.
        """
        nodes = self._graph.cluster.nodes
        target = nodes[int(draw(seed, "nemesis", "node", n) * len(nodes))].name
        if self._labels and draw(seed, "nemesis", "correlated", n) < CORRELATED:
            target = self._labels[int(draw(seed, "nemesis", "label", n) * len(self._labels))]
        back_s = int(5 + draw(seed, "nemesis", "back", n) * 55)
        kinds = ("", ":lost", ":preempt=30s", ":pause", ":partition=controller", ":cut-to=controller", ":leave")
        kind = kinds[int(draw(seed, "nemesis", "how", n) * len(kinds))]
        most_s = self._patience_s - (NOTICE_S if "preempt" in kind else 0)
        if back_s > most_s and not self._has_room_without(self._nodes_of([target, *before])):
            back_s = most_s  # a role that waits longer for nodes fails (R12)
        return f"{target}@{{at}}{kind}/{back_s}s" if back_s > 0 else None

    def _nodes_of(self, targets: Iterable[str]) -> set[str]:
        """Return the names of the nodes that faults with these targets hit: nodes, and labels such as `zone=a`."""
        hit = set(targets)
        nodes = self._graph.cluster.nodes
        return {node.name for node in nodes if hit.intersection((node.name, *map("=".join, node.labels)))}

    def _order(self, seed: int, n: int, drained: set[str]) -> str | None:
        """Return the text of a drawn order of the operator: add a node, drain one, or scale an elastic gang.

        The text has `{at}` where the time belongs. None if a node is to be drained and the other nodes have no room for
        all roles, or a gang is to be scaled and none is elastic. `drained` are the nodes that earlier orders drain.
        """
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
        """Return whether all roles have room without these nodes: gangs at their minimum, other roles at their maximum.

        A gang shrinks to its minimum when it re-forms; replicas of other roles keep their seats. False if any role has
        constraints on its placement, since the answer is not known then.
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
        """Return the text of a drawn fault that costs no budget: of a link, a slow replica, or checkpoints.

        The text has `{at}` where the time belongs.
        """
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
        """Return the kinds of checkpoint fault that the role survives. User code declares its own in `tolerates`."""
        if not spec.simulate:
            return (DISK_FULL, "torn-checkpoint")
        tolerates = getattr(load_model(self._graph, spec), "tolerates", ())
        return ("slow-checkpoint=10x/1m", *(DISK_FULL if fate == "disk-full" else fate for fate in tolerates))
