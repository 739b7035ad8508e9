"""Alternatives to the job of today, by lever: each changes one thing, and says how the command line writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from flowdist.advice.playing import leading_role
from flowdist.faults.kinds import having
from flowdist.graph import RoleGraph, RoleSpec, format_duration
from flowdist.graph.capacity import needed, offered, slots
from flowdist.graph.units import DAY
from flowdist.report.goodput import daly_ns
from flowdist.sim.experiment.experiment import Experiment
from flowdist.sim.experiment.outcome import Outcome
from flowdist.sim.user_code.workload import copy_ns

# minimum: also shrink or wait; snapshots: how many steps from one to the next; patience: pending_timeout; budget:
# max_restarts. The last two are for jobs that fail.
Lever = Literal[
    "interval", "snapshots", "copies", "minimum", "spares", "scope", "lease", "heartbeat", "patience", "budget"
]
LEVERS: tuple[Lever, ...] = get_args(Lever)
COPIES_MAX = 3  # of a shard: more are not tried
MANY = 200  # nodes: from here on, spare nodes are tried by the per cent as well

# Compiles the topology with more texts of --set, and another number of nodes (None: that of today).
Compile = Callable[[tuple[str, ...], int | None], RoleGraph]


class Change(NamedTuple):
    """One difference from the job of today."""

    lever: Lever
    what: str  # what is changed, in words that the command line knows where possible
    today: str
    proposed: str
    sets: tuple[str, ...] = ()  # texts of --set that make the difference
    nodes: int | None = None  # the number of --nodes; None: that of today

    @property
    def words(self) -> list[str]:
        """Return the words of a command line that make the difference."""
        words = [word for text in self.sets for word in ("--set", text)]
        return words + (["--nodes", str(self.nodes)] if self.nodes is not None else [])


def interval_change(graph: RoleGraph, role: RoleSpec, interval_ns: int) -> Change:
    """Return the change of a role to another checkpoint interval, in ns; roles of one joint world save together."""
    text, today = format_duration(interval_ns), format_duration(role.workload.checkpoint_every_ns)
    names = graph.mates_of(role.name)
    what = f"{' and '.join(names)} save{'s' * (len(names) == 1)} every"
    return Change("interval", what, today, text, tuple(f"{name}.workload.checkpoint_every={text}" for name in names))


def with_interval(graph: RoleGraph, role: RoleSpec, interval_ns: int) -> RoleGraph:
    """Return the graph with another checkpoint interval (ns) of the role, and of those in its joint world."""
    names, roles = graph.mates_of(role.name), []
    for other in graph.roles:
        load = msgspec.structs.replace(other.workload, checkpoint_every_ns=interval_ns)
        roles.append(msgspec.structs.replace(other, workload=load) if other.name in names else other)
    return msgspec.structs.replace(graph, roles=tuple(roles))


def changes_of(job: Experiment, today: list[Outcome]) -> Iterator[Change]:
    """Yield the changes of each lever but the interval that may matter to the job.

    What helps a job that fails is tried only if one of the outcomes `today` has failed.
    """
    role = leading_role(job.graph)
    yield from _snapshots(job.graph, role, today)
    yield from _minimum(role)
    yield from _spares(job.graph, role)
    yield from _scope(role)
    kinds = {rate.kind for rate in job.plan.rates} | {fault.kind for fault in job.plan.faults}
    if not kinds.isdisjoint(having("silences", "weakens-link")):
        yield from _silence(job.graph)
    reasons = [outcome.reason for outcome in today if outcome.has_failed]
    if reasons:
        yield from _patience(role)
        spent = [
            other for other in job.graph.roles if any(f"role {other.name} has used up" in text for text in reasons)
        ]
        for other in spent or [role]:
            yield from _budget(other)


def _snapshots(graph: RoleGraph, role: RoleSpec, today: Sequence[Outcome]) -> Iterator[Change]:
    """Yield other numbers of steps from one snapshot in memory to the next, and other numbers of copies.

    They lie around today's, and around the best one by Daly's formula: a snapshot costs the time of its copy.
    """
    spec = role.snapshots
    if spec is None:
        return
    between_ns = between_restarts_ns(role, today)
    blocks_ns = copy_ns(role) * spec.every
    best = daly_ns(blocks_ns, between_ns) / role.workload.step_ns if between_ns is not None else spec.every
    numbers = [round(around * factor) for around in (best, spec.every) for factor in (0.5, 1, 2)]
    names = graph.mates_of(role.name)
    who = " and ".join(names)
    for number in sorted({min(max(1, number), role.workload.steps) for number in numbers} - {spec.every}):
        sets = tuple(f"{name}.snapshots.every={number}" for name in names)
        steps = f"{number} step{'s' * (number > 1)}"
        what = f"{who} take{'s' * (len(names) == 1)} snapshots every"
        yield Change("snapshots", what, f"{spec.every} step{'s' * (spec.every > 1)}", steps, sets)
    for number in range(1, min(COPIES_MAX, len(graph.cluster.nodes)) + 1):
        if number != spec.copies:
            sets = tuple(f"{name}.snapshots.copies={number}" for name in names)
            yield Change("copies", f"copies of a shard of {who}", str(spec.copies), str(number), sets)


def between_restarts_ns(role: RoleSpec, today: Sequence[Outcome]) -> float | None:
    """Return how long today's runs have lasted from one restart of a role to the next; None without a restart."""
    restarts = sum(max(0, outcome.generations[role.name] - 1) for outcome in today)
    return sum(outcome.lasted_ns for outcome in today) / restarts if restarts else None


def _minimum(role: RoleSpec) -> Iterator[Change]:
    """Yield other minima: waiting for all replicas, and shrinking to fewer."""
    least, most = role.min_replicas, role.max_replicas
    for number in dict.fromkeys([most, most - role.step, most // 2, max(1, most // 4), role.step]):
        if 1 <= number <= most and number != least and number % role.step == 0:
            size = str(most) if number == most else f"{number}:{most}"
            what = f"{role.name} {'waits for' if number == most else 'starts with'}"
            sets = (f"{role.name}.replicas={size}",)
            yield Change("minimum", what, f"{least} of {most}", f"{number} of {most}", sets)


def _spares(graph: RoleGraph, role: RoleSpec) -> Iterator[Change]:
    """Yield other numbers of nodes: more of them, and as many as the job needs."""
    count = len(graph.cluster.nodes)
    tried = [count + 1, count + 2]
    if count >= MANY:
        tried += [count + count // 100, count + count // 50]
    if len(graph.roles) == 1 and (spare := _spare_nodes(graph, role)):
        tried += [count - 1, count - spare // 2 if spare > 1 else count - 1, count - spare]
    for number in dict.fromkeys(tried):
        yield Change("spares", "nodes", str(count), str(number), nodes=number)


def _spare_nodes(graph: RoleGraph, role: RoleSpec) -> int:
    """Return how many of the last nodes the role does not need, if all nodes are there."""
    rooms = [slots(needed(role.resources), offered(node)) for node in graph.cluster.nodes]
    if role.placement.apart:
        rooms = [min(room, 1) for room in rooms]
    spare, left = 0, sum(rooms)
    for room in reversed(rooms):
        left -= room
        if left < role.max_replicas:
            break
        spare += 1
    return spare


def _scope(role: RoleSpec) -> Iterator[Change]:
    """Yield the other scopes of the role's restart policy. The replicas of a gang restart together in any case."""
    if role.restart is None:
        return
    for scope in ("role", "job") if role.gang else ("replica", "role", "job"):
        if scope != role.restart.scope:
            sets = (f"{role.name}.restart.scope={scope}",)
            yield Change("scope", f"a failure of {role.name} restarts", role.restart.scope, scope, sets)


def _silence(graph: RoleGraph) -> Iterator[Change]:
    """Yield other leases and heartbeats, which decide how soon a silent node is lost."""
    options = graph.options
    levers: tuple[tuple[Lever, int, tuple[float, ...]], ...] = (
        ("lease", options.lease_ns, (0.5, 2, 4)),
        ("heartbeat", options.heartbeat_ns, (0.5, 2)),
    )
    for lever, ns, factors in levers:
        for text in (format_duration(round(ns * factor)) for factor in factors):
            yield Change(lever, lever, format_duration(ns), text, (f"{lever}={text}",))


def _patience(role: RoleSpec) -> Iterator[Change]:
    """Yield longer waits for nodes, for a job that fails."""
    for ns in (6 * role.pending_timeout_ns, DAY):
        if ns > role.pending_timeout_ns:
            text = format_duration(ns)
            today, field = format_duration(role.pending_timeout_ns), f"{role.name}.pending_timeout"
            yield Change("patience", f"{role.name} waits for nodes", today, text, (f"{field}={text}",))


def _budget(role: RoleSpec) -> Iterator[Change]:
    """Yield more restarts, for a job that fails: a role whose budget is used up, or the leading one."""
    if role.restart is None:
        return
    count = role.restart.max_restarts
    for number in (3 * count + 3, 20 * count + 20):
        field = f"{role.name}.restart.max_restarts"
        yield Change("budget", f"{role.name} may restart", str(count), str(number), (f"{field}={number}",))


def changed(job: Experiment, changes: Sequence[Change], compile: Compile) -> Experiment:
    """Return the job with changes, all at once. TopologyProblems: it has errors with them."""
    sets = tuple(text for change in changes for text in change.sets)
    nodes = [change.nodes for change in changes if change.nodes is not None]
    return job._replace(graph=compile(sets, nodes[-1] if nodes else None))
