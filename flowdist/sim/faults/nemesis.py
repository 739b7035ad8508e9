"""The nemesis: it draws a plan of faults from a seed, with only such faults as the topology declares to survive.

Each seed favours one kind of fault, so that a campaign sees runs full of one kind as well as mixtures. Each fault
counts against what the topology declares: the budget of a role, room for the minima, the membership changes in a row
that R8 allows. So a job that fails under such a plan has broken a promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

from flowdist.faults.grammar import Fault, Plan, parse_fault
from flowdist.faults.kinds import having
from flowdist.faults.streams import draw
from flowdist.graph import MS, SECOND, RestartPolicy, RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import fits, needed, offered, subtract
from flowdist.sim.faults.aiming import Aim
from flowdist.sim.user_code.models import load_model
from flowdist.sim.workers.collectives import says_nothing

FAULTS_MAX = 6  # how many faults are drawn for a plan at most; some bring a second one
# Shares of faults, from 0 to 1.
AIMED = 0.3  # of the faults at a random time: moved into the writing of a checkpoint, where gangs save
READS = 0.6  # of the faults soon after another fault: moved into the reading of a checkpoint, where gangs read one
EARLY = 0.15  # of the plans, where user code saves: the first fault comes before the first checkpoint
ZOMBIES = 0.1  # of all faults, where user code saves: a pause of a node that is replaced meanwhile
DISK_FULL = "disk-full/1m"
WHOLE_GANGS = 0.15  # of the failures of gangs: hit all members
CORRELATED = 0.25  # of the node faults: hit all nodes with a label
COLLECTIVES = ("", "fail", "hang")
KINDS = ("replica", "node", "controller", "harmless", "order")
AWAY = ("", ":lost", ":preempt=30s", ":pause", ":partition=controller", ":cut-to=controller", ":leave")
NODE_FAULTS_MAX = 3  # each may be two changes of membership in a row, which R8 limits
NOTICE_S = 30  # the notice of preemptions
REJOIN_S = 5  # the longest time from a node's return to its join
T = TypeVar("T")


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
    policies = [spec.restart for spec in graph.roles if spec.restart is not None]
    bears = len(graph.cluster.nodes) > 1 and all(_action(each, "node_lost") == "restart" for each in policies)
    return Tolerance(budgets, NODE_FAULTS_MAX if bears else 0)


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


class _Dice(NamedTuple):
    """Numbers that the seed draws for fault `n` of its plan, one for each purpose."""

    seed: int
    n: int = 0

    def draw(self, purpose: str) -> float:
        return draw(self.seed, "nemesis", purpose, self.n)

    def below(self, purpose: str, most: int) -> int:
        return int(self.draw(purpose) * most)

    def pick(self, purpose: str, choices: Sequence[T]) -> T:
        return choices[self.below(purpose, len(choices))]


def _end(spec: RoleSpec, dice: _Dice) -> str:
    """Draw how a worker ends, so that the role restarts: ":oom", ":exit=3", or mostly empty for a kill."""
    assert spec.restart is not None
    which, code = dice.draw("end"), 1 + dice.below("code", 100)
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


class Nemesis:
    """Source of drawn plans for one topology: `plan` returns the same plan for the same seed.

    The job takes `horizon_ns` without faults. `saves` are begin and end, in ns, of each checkpoint of user code in such
    a run. About half of the faults are drawn into these times, and the first fault of one plan in seven before the
    first of them.
    """

    def __init__(self, graph: RoleGraph, horizon_ns: int, saves: Sequence[tuple[int, int]] = ()) -> None:
        self._graph, self._horizon_ns, self._saves = graph, horizon_ns, saves
        self._nodes, self._tolerance, self._aim = graph.cluster.nodes, tolerance_of(graph), Aim(graph)
        self._labels = list(dict.fromkeys("=".join(label) for node in graph.cluster.nodes for label in node.labels))
        # A role waits `pending_timeout` for nodes. All node faults of a plan together have to fit into that.
        waits_ns = min(spec.pending_timeout_ns for spec in graph.roles)
        self._patience_s = waits_ns // NODE_FAULTS_MAX // SECOND - REJOIN_S

    def plan(self, seed: int) -> Plan:
        """Return the plan that the seed draws, in the order drawn, without faults that find no budget or room."""
        budgets, nodes = dict(self._tolerance.budgets), self._tolerance.nodes
        faults: list[Fault] = []
        for n in range(1 + _Dice(seed).below("count", FAULTS_MAX)):
            dice, text = _Dice(seed, n), None
            at = self._time(dice, faults)
            if self._saves and nodes > 0 and dice.draw("zombie") < ZOMBIES:
                faults += self._zombie(dice, budgets)
                nodes -= 1
                continue
            # One time in two the kind is that which the whole plan favours.
            kind = _Dice(seed).pick("favoured", KINDS) if dice.draw("swarm") < 0.5 else dice.pick("kind", KINDS)
            if kind == "replica":
                text = self._replica_fault(dice, budgets)
            elif kind == "controller":
                text = "controller@{at}"
            elif kind == "harmless":
                text = self._harmless(dice)
            elif nodes > 0:  # an order counts as a lost node, since it changes the membership, too
                text = self._node_fault(dice, faults) if kind == "node" else self._order(dice, faults)
                nodes -= text is not None
            if text is None:
                continue
            faults.append(_fault(text, at))
            if faults[-1].kind in having("damages") and self._saves:  # a restart reads the damage soon after
                faults += self._replica_killed(dice, budgets, at + dice.below("read", 8 * SECOND))
        return Plan(tuple(faults))

    def collective(self, seed: int) -> str:
        """Draw what peers of a dead worker do where no workload says it: "fail" (if survived), "hang", or empty."""
        silent = [spec for spec in self._graph.roles if says_nothing(spec)]
        if not any(spec.gang for spec in silent):
            return ""
        drawn = _Dice(seed).pick("collective", COLLECTIVES)
        bears = all(_bears_failing_peers(self._graph, spec) for spec in silent)
        return drawn if bears or drawn != "fail" else ""

    def _time(self, dice: _Dice, before: list[Fault]) -> int:
        """Draw the time of a fault, in ns and whole ms. `before` are the faults drawn so far.

        The first may come before the first checkpoint of user code, which a restart then does without: that takes a
        small part of most jobs. One in three of the others comes within 8 s of the last of these or its end, or is
        moved to where a gang reads its checkpoint because of it. Of the others, some are moved to where a checkpoint is
        written, and the rest is anywhere.
        """
        seed, n = dice
        last = before[-1].when.at_ns if before else None
        if n == 0 and self._saves and dice.draw("early") < EARLY:
            at = dice.below("at", min(begin for begin, _ in self._saves))
        elif last is not None and dice.draw("close") < 0.33:
            lasts = before[-1].duration_ns if self._saves and dice.draw("after") < 0.5 else 0
            reads = self._aim.restoring(seed, n, before[-1]) if dice.draw("reads") < READS else None
            at = last + (lasts or 0) + dice.below("gap", 8 * SECOND) if reads is None else reads
        elif self._saves and dice.draw("aim") < 0.5:
            at = self._in_a_save(dice)
        else:
            aimed = self._aim.saving(seed, n, before[-1] if before else None) if dice.draw("aimed") < AIMED else None
            at = dice.below("at", self._horizon_ns) if aimed is None else aimed
        return at // MS * MS

    def _in_a_save(self, dice: _Dice) -> int:
        begin, end = dice.pick("save", self._saves)
        return begin + dice.below("in it", end - begin)

    def _zombie(self, dice: _Dice, budgets: dict[str, int]) -> list[Fault]:
        """Draw a pause of a node while user code saves, long enough for its loss, and a failure of a replica after it.

        So a node that has been replaced goes on with its old write. The failure, which makes a restart read the
        checkpoint, is left out if no budget is left for it.
        """
        at, options = self._in_a_save(dice) // MS * MS, self._graph.options
        lasts = options.lease_ns + options.lease_margin_ns + int((3 + dice.draw("back") * 40) * SECOND)
        paused = f"{dice.pick('node', self._nodes).name}@{{at}}:pause/{format_duration(lasts // MS * MS)}"
        return [
            _fault(paused, at),
            *self._replica_killed(dice, budgets, at + lasts + dice.below("gap", 8 * SECOND)),
        ]

    def _replica_killed(self, dice: _Dice, budgets: dict[str, int], at: int) -> list[Fault]:
        """Draw a failure of a replica at the time `at`, in ns, rounded down to ms; empty if no budget is left."""
        text = self._replica_fault(dice, budgets)
        return [_fault(text, at // MS * MS)] if text else []

    # The drawn faults below are texts, with `{at}` where the time belongs.

    def _replica_fault(self, dice: _Dice, budgets: dict[str, int]) -> str | None:
        """Draw a failure of a replica or a whole gang, from the budget of its role; None if no role has any left."""
        roles = [spec for spec in self._graph.roles if budgets[spec.name] > 0]
        if not roles:
            return None
        spec = dice.pick("role", roles)
        budgets[spec.name] -= 1
        replica = f"{spec.name}/{dice.below('replica', spec.max_replicas)}"
        hangs = spec.hang_after_ns is not None and spec.kind == "task" and dice.draw("hang") < 0.3
        if hangs and spec.restart is not None and _action(spec.restart, "hang") == "restart":
            return replica + "@{at}:hang"
        hits_all = spec.gang and dice.draw("all of it") < WHOLE_GANGS  # which is one incident
        return (spec.name if hits_all else replica) + "@{at}" + _end(spec, dice)

    def _node_fault(self, dice: _Dice, before: Iterable[Fault]) -> str | None:
        """Draw a fault that takes a node, or all nodes with a label, away for a while.

        If other nodes have no room for all roles, where the faults `before` may have taken some away, the node comes
        back before a role fails for want of nodes (R12). None if that leaves no time.
        """
        target = dice.pick("node", self._nodes).name
        if self._labels and dice.draw("correlated") < CORRELATED:
            target = dice.pick("label", self._labels)
        back_s, kind = int(5 + dice.draw("back") * 55), dice.pick("how", AWAY)
        most_s = self._patience_s - (NOTICE_S if "preempt" in kind else 0)
        hit = {target, *(fault.target for fault in before)}
        names = {node.name for node in self._nodes if hit.intersection((node.name, *map("=".join, node.labels)))}
        if back_s > most_s and not self._has_room_without(names):
            back_s = most_s
        return f"{target}@{{at}}{kind}/{back_s}s" if back_s > 0 else None

    def _order(self, dice: _Dice, before: Iterable[Fault]) -> str | None:
        """Draw an order of the operator: add, drain or scale; None without room, or without an elastic gang."""
        which = dice.draw("order")
        if which < 0.3:
            return f"extra{dice.n}@{{at}}:add"
        if which < 0.6:
            name = dice.pick("drained", self._nodes).name
            drained = {fault.target for fault in before if fault.kind == "drain"}
            return f"{name}@{{at}}:drain" if self._has_room_without({*drained, name}) else None
        elastic = [spec for spec in self._graph.roles if spec.gang and spec.min_replicas < spec.max_replicas]
        if not elastic:
            return None
        spec = dice.pick("scaled", elastic)
        size = spec.min_replicas + dice.below("scale", spec.max_replicas - spec.min_replicas + 1)
        return f"{spec.name}@{{at}}:scale={size}"

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

    def _harmless(self, dice: _Dice) -> str:
        """Draw a fault that costs no budget: of a link, a slow replica, checkpoints, or copies of snapshots."""
        spec = dice.pick("task", [spec for spec in self._graph.roles if spec.kind == "task"])
        node, lease_ns = dice.pick("link", self._nodes).name, self._graph.options.lease_ns
        choices = (
            f"{node}@{{at}}:delay={format_duration(lease_ns // 10)}/30s",
            f"{node}@{{at}}:flap={format_duration(lease_ns // 8)}/30s",  # each silence is shorter than a lease
            f"{node}@{{at}}:drop=0.2/30s",
            f"{node}@{{at}}:duplicate=0.3/30s",
            f"{node}@{{at}}:reorder=0.3/30s",
            f"{spec.name}/0@{{at}}:slow=2x/30s",
            *(f"{spec.name}@{{at}}:{fate}" for fate in self._fates(spec)),
            *([f"{node}@{{at}}:broken-copy"] if any(role.snapshots is not None for role in self._graph.roles) else []),
        )
        return dice.pick("which", choices)

    def _fates(self, spec: RoleSpec) -> tuple[str, ...]:
        """Return the kinds of checkpoint fault that the role survives. User code declares its own in `tolerates`."""
        if not spec.simulate:
            return (DISK_FULL, "torn-checkpoint")
        tolerates = getattr(load_model(self._graph, spec), "tolerates", ())
        return ("slow-checkpoint=10x/1m", *(DISK_FULL if fate == "disk-full" else fate for fate in tolerates))


def _fault(text: str, at: int) -> Fault:
    return parse_fault(text.replace("{at}", format_duration(at)))
