"""Property of a gang that fails repeatedly: the controller decides as a reference model of restart budgets does.

The model implements the rules of a policy, budgets, escalation, back-off and the limit of free incidents (R7 to R11),
and the nodes that a replica avoids after failures (R22). Controller and model get the same failures; their decisions
have to agree.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st

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
from flowdist.sim.engine.queue import CRASHES
from flowdist.testing.strategies import NODES
from tests.proofs.conversation import Player
from tests.proofs.judge.restart_rules import Complaint, crash

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


class Hit(NamedTuple):
    """Failures of one kind at one moment, `gap_s` seconds after the gang runs again.

    `indexes` are those of the replicas that fail, modulo the number of replicas. With the kind `node`, the node of the
    first of them is lost instead.
    """

    gap_s: int
    kind: Kind
    indexes: tuple[int, ...]


class RepeatedFailures(NamedTuple):
    """Case of `judge_repeated_failures`: the size of a gang, its restart policy, and what fails, in order."""

    replicas: int
    policy: RestartPolicy
    hits: tuple[Hit, ...]


def repeated_failures() -> st.SearchStrategy[RepeatedFailures]:
    """Return a Hypothesis strategy for cases: gangs of one to three replicas, with one to eight hits."""
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
    indexes = st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True).map(tuple)
    hits = st.lists(
        st.builds(Hit, st.sampled_from([0, 1, 5, 20, 35, 61]), st.sampled_from(KINDS), indexes),
        min_size=1,
        max_size=8,
    )
    return st.builds(RepeatedFailures, st.integers(1, 3), policy, hits.map(tuple))


def judge_repeated_failures(case: RepeatedFailures) -> list[Complaint]:
    """Play the case with the controller and with the model, and return what differs at the first hit that does.

    Empty if the two agree on every hit, or on the end of the job. A crash of the controller is a complaint, too.
    """
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
    model = BudgetModel(case.policy)
    try:
        player.play(())
        for number, hit in enumerate(case.hits, 1):
            if found := _apply(player, model, hit, case.replicas):
                return [Complaint(rule, f"{text} (hit {number})") for rule, text in found]
            if model.is_failed:
                return []
    except CRASHES as error:
        return [crash(error)]
    return []


def _apply(player: Player, model: BudgetModel, hit: Hit, replicas: int) -> list[tuple[str, str]]:
    """Apply one hit to controller and model, and let the gang run again. Return each broken rule with a text."""
    player.wait(hit.gap_s)
    start = len(player.lines)
    failed = list(dict.fromkeys(ReplicaId("a", i % replicas) for i in hit.indexes))
    seats = {replica: player.controller.state.replicas[replica].node or "" for replica in failed}
    if hit.kind == "node":
        player.lose(seats[failed[0]])
        wait_ns = model.lose_node(player.now)
    else:
        kind, code, signal = _exit_of(hit.kind)
        for replica in failed:
            attempt = player.controller.state.replicas[replica].attempt
            player.fail((replica, attempt), kind, code, signal)
        wait_ns = model.fail(player.now, kind, code, signal, (failed[0], seats[failed[0]]))
    if model.is_failed:
        player.calm()  # the controller fails the job only when the other members have stopped: their nodes are not lost
    job = player.controller.state
    if model.is_failed or job.ending is not None:
        if model.is_failed and job.ending == "failed":
            return []
        return [("R11", f"the job {'ends' if job.ending else 'does not end'}: {job.ending_reason or 'it should'}")]
    failed_ns = player.now
    while job.replicas[ReplicaId("a", 0)].phase != "running" and player.now < failed_ns + MINUTE:
        player.calm()
        if job.replicas[ReplicaId("a", 0)].phase == "running" or not player.pass_time():
            break
    model.runs_again(player.now)
    if hit.kind == "node":
        player.join(seats[failed[0]])
    return _compare(player, model, failed_ns, wait_ns, start)


def _compare(player: Player, model: BudgetModel, failed_ns: int, wait_ns: int, start: int) -> list[tuple[str, str]]:
    """Return where the restart that followed a hit differs from the model, as broken rules with texts.

    Compared are its time (R10), the number of charges (R7), and the nodes (R22).

    Args:
        player: The player of the controller.
        model: The model, which has recorded the same hit.
        failed_ns: When the hit was applied (ns).
        wait_ns: The back-off that the model demands (ns).
        start: The number of lines in the record before the hit.
    """
    found = []
    starts = [
        (line.t_ns, effect)
        for line in player.records()[start - 1 :]
        for effect in line.effects
        if isinstance(effect, StartReplica)
    ]
    if not starts or starts[0][0] != failed_ns + wait_ns:
        after = f"starts again after {(starts[0][0] - failed_ns) / SECOND:g}s" if starts else "does not start again"
        found.append(("R10", f"the gang {after}, expected after {wait_ns / SECOND:g}s"))
    charges = len(player.controller.state.roles["a"].charges)
    if charges != len(model.charges):
        found.append(("R7", f"{charges} charges, expected {len(model.charges)}"))
    bad = model.bad_nodes(player.now)
    for _, order in starts:
        if order.node in bad and len(bad) == 1:
            found.append(("R22", f"{order.replica} starts on {order.node}, a bad node"))
        avoided = model.avoided(order.replica, player.now)
        if order.node in avoided and not bad and len(avoided) == 1:
            found.append(("R22", f"{order.replica} starts on {order.node}, where it failed twice alike"))
    return found


def _exit_of(kind: Kind) -> tuple[FailureKind, int, str | None]:
    if kind == "SEGV":
        return "signal", 139, "SEGV"
    return ("oom", 137, None) if kind == "oom" else ("exit", int(kind.removeprefix("exit=")), None)


class BudgetModel:
    """Reference model of one gang: what R7 to R11 and R22 demand, computed from its failures alone.

    `is_failed` turns true when the job has to fail. Times are in ns since the start of the job.
    """

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.charges: list[tuple[int, int]] = []  # when the incident opened, and the level of its budget
        self.is_failed = False
        self._failures: list[tuple[int, str, ReplicaId, NodeName]] = []
        self._formed = 0
        self._free_row = 0
        self._restarts = 0  # charged ones since the back-off was reset
        self._closed: int | None = None  # when the last charged incident closed
        self._open: int | None = None  # level of the open charged incident

    def fail(
        self,
        now: int,
        kind: FailureKind,
        code: int,
        signal: str | None,
        first: tuple[ReplicaId, NodeName],
    ) -> int:
        """Record the failure of a replica; return the back-off in ns, 0 if the job fails or the failure is free.

        Failures of other members at the same moment belong to the same incident and are not charged (R7).

        Args:
            now: When it failed.
            kind: The kind of the failure.
            code: The exit code.
            signal: The signal that ended the worker, without SIG; None if it exited.
            first: The replica that failed first, and its node.
        """
        self._failures.append((now, kind, *first))
        rule = self._rule(kind, code, signal)
        if rule is not None and rule.do == "fail":
            self.is_failed = True
            return 0
        return self._count(now) if rule is None or rule.counted else self._free(now)

    def lose_node(self, now: int) -> int:
        """Record the loss of a node; return the back-off in ns, 0 unless a rule of the policy charges the loss."""
        rule = self._rule("node_lost", 0, None)
        if rule is not None and rule.do == "fail":
            self.is_failed = True
            return 0
        return self._count(now) if rule is not None and rule.counted else self._free(now)

    def runs_again(self, now: int) -> None:
        """Record that the gang has formed at `now`, which closes the open incident."""
        self._formed = now
        if self._open is not None:
            self._open, self._closed = None, now

    def bad_nodes(self, now: int) -> list[NodeName]:
        """Return the nodes with three failures of one kind within the last hour, of any replicas (R22)."""
        recent = [(node, kind) for at, kind, _, node in self._failures if at > now - 60 * MINUTE]
        return sorted({node for node, kind in recent if recent.count((node, kind)) >= 3})

    def avoided(self, replica: ReplicaId, now: int) -> list[NodeName]:
        """Return the nodes on which this replica had two failures of one kind within the last hour (R22)."""
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
        """Charge the first level that has budget left, and return the back-off in ns; without one, fail the job."""
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
        """Count a free incident; the sixth in a row without a minute of health between them fails the job (R8).

        Returns:
            The back-off, which is always 0.
        """
        self._free_row = 1 if now - self._formed >= MINUTE else self._free_row + 1
        self.is_failed = self._free_row > 5
        return 0
