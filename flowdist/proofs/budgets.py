"""A reference of who pays: one gang that is hit again and again, and a model of sixty lines of what must follow.

The model knows rules, budgets, escalation, back-off and the limit of free incidents (R7 to R11), and where a replica
that fails may start again (R22). It is told the same blows as the controller; what both have decided is compared.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import (
    MINUTE,
    SECOND,
    Cluster,
    FailureKind,
    NodeSpec,
    Resources,
    RestartPolicy,
    RoleGraph,
    RoleSpec,
    Rule,
)
from flowdist.proofs.conversation import Player
from flowdist.record.restart_rules import CRASHES, Complaint, crash
from flowdist.testing.strategies import NODES

Kind = Literal["exit=1", "exit=2", "oom", "SEGV", "node"]
KINDS: tuple[Kind, ...] = ("exit=1", "exit=2", "oom", "SEGV", "node")
MATCHES: tuple[dict[str, object], ...] = (
    {"exit": 2},
    {"kind": "exit"},
    {"kind": "oom"},
    {"signal": "SEGV"},
    {"kind": "node_lost"},
    {},
)


class RemoteFault(NamedTuple):
    """After `gap_s` of running, these replicas fail at one moment; with `node` the node of the first is lost."""

    gap_s: int
    kind: Kind
    hits: tuple[int, ...]


class Beating(NamedTuple):
    """The case."""

    replicas: int
    policy: RestartPolicy
    blows: tuple[RemoteFault, ...]


def beatings() -> st.SearchStrategy[Beating]:
    rules = st.builds(
        lambda match, do, counted: Rule(do, counted=counted, **match),
        st.sampled_from(MATCHES),
        st.sampled_from(["restart", "restart", "fail"]),
        st.booleans(),
    )
    wider = st.builds(RestartPolicy, st.just("job"), st.integers(0, 2))
    policy = st.builds(
        lambda budget, within, rules, wider: RestartPolicy(
            "role",
            budget,
            within,
            "widen" if wider is not None else "fail",
            tuple(rules),
            backoff_max_ns=4 * SECOND,
            backoff_reset_ns=30 * SECOND,
            wider=wider,
        ),
        st.integers(0, 5),
        st.sampled_from([None, None, 40 * SECOND]),
        st.lists(rules, max_size=2),
        st.one_of(st.none(), wider),
    )
    hits = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(tuple)
    blows = st.lists(
        st.builds(RemoteFault, st.sampled_from([0, 1, 5, 20, 35, 61]), st.sampled_from(KINDS), hits),
        min_size=1,
        max_size=8,
    )
    return st.builds(Beating, st.integers(1, 3), policy, blows.map(tuple))


def judge_beating(case: Beating) -> list[Complaint]:
    role = RoleSpec(
        "a",
        ("true",),
        min_replicas=case.replicas,
        max_replicas=case.replicas,
        restart=case.policy,
        resources=Resources(cpu=1.0),
    )
    cluster = Cluster(tuple(NodeSpec(name, cpu=8.0) for name in NODES))
    player = Player(RoleGraph("test", (role,), cluster=cluster))
    model = Model(case.policy)
    try:
        player.play(())
        for number, blow in enumerate(case.blows, 1):
            if found := _strike(player, model, blow, case.replicas):
                return [Complaint(rule, f"{text} (blow {number})") for rule, text in found]
            if model.is_failed:
                return []
    except CRASHES as error:
        return [crash(error)]
    return []


def _strike(player: Player, model: Model, blow: RemoteFault, replicas: int) -> list[tuple[str, str]]:
    player.wait(blow.gap_s)
    start = len(player.lines)
    hits = list(dict.fromkeys(ReplicaId("a", i % replicas) for i in blow.hits))
    seats = {replica: player.controller.state.replicas[replica].node or "" for replica in hits}
    if blow.kind == "node":
        player.tell_gone(seats[hits[0]])
        wait_ns = model.lose_node(player.now)
    else:
        kind, code, signal = _how(blow.kind)
        for replica in hits:
            attempt = player.controller.state.replicas[replica].attempt
            player.fail((replica, attempt), kind, code, signal)
        wait_ns = model.fail(player.now, kind, code, signal, len(hits), (hits[0], seats[hits[0]]))
    if model.is_failed:
        player.calm()  # the others do as they are told: then it is known that no node of theirs is lost
    job = player.controller.state
    if model.is_failed or job.ending is not None:
        if model.is_failed and job.ending == "failed":
            return []
        return [("R11", f"the job {'ends' if job.ending else 'goes on'}: {job.ending_reason or 'it should not'}")]
    struck = player.now
    while job.replicas[ReplicaId("a", 0)].phase != "running" and player.now < struck + MINUTE:
        player.calm()
        due = player.controller.deadline()
        if due is None or job.replicas[ReplicaId("a", 0)].phase == "running":
            break
        player.now = max(player.now, due)
        player.tell(ev.TimePassed())
    model.runs_again(player.now)
    if blow.kind == "node":
        player.join(seats[hits[0]])
    return _compare(player, model, struck, wait_ns, start)


def _compare(player: Player, model: Model, struck: int, wait_ns: int, start: int) -> list[tuple[str, str]]:
    found = []
    starts = [
        (line.t_ns, effect)
        for line in player.records()[start - 1 :]
        for effect in line.effects
        if isinstance(effect, StartReplica)
    ]
    if not starts or starts[0][0] != struck + wait_ns:
        after = f"after {(starts[0][0] - struck) / SECOND:g}s" if starts else "never"
        found.append(("R10", f"it starts again {after}, it should after {wait_ns / SECOND:g}s"))
    charges = len(player.controller.state.roles["a"].charges)
    if charges != len(model.charges):
        found.append(("R7", f"it was charged {charges} times, it should be {len(model.charges)}"))
    bad = model.bad_nodes(player.now)
    for _, order in starts:
        if order.node in bad and len(bad) == 1:
            found.append(("R22", f"{order.replica} starts on {order.node}, where so much has failed"))
        avoided = model.avoided(order.replica, player.now)
        if order.node in avoided and not bad and len(avoided) == 1:
            found.append(("R22", f"{order.replica} starts on {order.node} again, where it has failed twice in one way"))
    return found


def _how(kind: Kind) -> tuple[FailureKind, int, str | None]:
    if kind == "SEGV":
        return "signal", 139, "SEGV"
    return ("oom", 137, None) if kind == "oom" else ("exit", int(kind.removeprefix("exit=")), None)


class Model:
    """What must follow, by the words of the rules."""

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.charges: list[tuple[int, int]] = []  # when the incident opened, and the level of its budget
        self.is_failed = False
        self._failures: list[tuple[int, str, ReplicaId, NodeName]] = []
        self._formed = 0
        self._free_row = 0
        self._restarts = 0  # counted, since the back-off began
        self._closed: int | None = None  # the last counted incident
        self._open: int | None = None  # its level

    def fail(
        self,
        now: int,
        kind: FailureKind,
        code: int,
        signal: str | None,
        many: int,
        first: tuple[ReplicaId, NodeName],
    ) -> int:
        """How long until it starts again. Whoever fails beside the first is judged, and not charged (R7)."""
        self._failures.append((now, kind, *first))
        rule = self._rule(kind, code, signal)
        if rule is not None and rule.do == "fail":
            self.is_failed = True
            return 0
        return self._count(now) if rule is None or rule.counted else self._free(now)

    def lose_node(self, now: int) -> int:
        rule = self._rule("node_lost", 0, None)
        if rule is not None and rule.do == "fail":
            self.is_failed = True
            return 0
        return self._count(now) if rule is not None and rule.counted else self._free(now)

    def runs_again(self, now: int) -> None:
        self._formed = now
        if self._open is not None:
            self._open, self._closed = None, now

    def bad_nodes(self, now: int) -> list[NodeName]:
        """Three failures of a kind within the hour, from any replicas (R22)."""
        recent = [(node, kind) for at, kind, _, node in self._failures if at > now - 60 * MINUTE]
        return sorted({node for node, kind in recent if recent.count((node, kind)) >= 3})

    def avoided(self, replica: ReplicaId, now: int) -> list[NodeName]:
        """Two failures of a kind of this replica (R22)."""
        own = [(node, kind) for at, kind, who, node in self._failures if who == replica and at > now - 60 * MINUTE]
        return sorted({node for node, kind in own if own.count((node, kind)) >= 2})

    def _rule(self, kind: FailureKind, code: int, signal: str | None) -> Rule | None:
        for rule in self.policy.rules:
            is_kind = rule.kind in (None, kind)
            is_exit = rule.exit is None or (kind == "exit" and rule.exit == code)
            is_signal = rule.signal is None or (kind == "signal" and rule.signal == signal)
            if is_kind and is_exit and is_signal:
                return rule
        return None

    def _count(self, now: int) -> int:
        level, policy = 0, self.policy
        while self._used(policy, level, now) >= policy.max_restarts:
            if policy.wider is None:
                self.is_failed = True
                return 0
            level, policy = level + 1, policy.wider
        if self._closed is not None and now - self._closed >= policy.backoff_reset_ns:
            self._restarts = 0
        wait = min(policy.backoff_ns << (self._restarts - 1), policy.backoff_max_ns) if self._restarts else 0
        self._restarts += 1
        self.charges.append((now, level))
        self._open = level
        return wait

    def _used(self, policy: RestartPolicy, level: int, now: int) -> int:
        since = now - policy.within_ns if policy.within_ns is not None else -1
        return sum(at > since for at, of in self.charges if of == level)

    def _free(self, now: int) -> int:
        """The sixth in a row without a minute of health fails the job (R8)."""
        self._free_row = 1 if now - self._formed >= MINUTE else self._free_row + 1
        self.is_failed = self._free_row > 5
        return 0
