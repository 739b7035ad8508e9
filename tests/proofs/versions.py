"""Property of versions on edges (R23): a replica is ready exactly if its attempt has a version that is fresh enough.

The job has a learner that publishes, a critic that publishes too, two actors that need versions of the learner, one
watcher that needs versions of the critic, and an evaluator with a gate on the actors. Random moves publish,
acknowledge, end attempts and repeat old reports. After each event the phases of the replicas are compared with
`record.facts`, which computes them from the events alone; at the end `record.restart_rules` judges the record.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st

from flowdist.control.protocol import events as ev
from flowdist.graph import Cluster, Gate, NodeSpec, Readiness, RestartPolicy, RoleGraph, RoleSpec, VersionEdge
from flowdist.record.journal import Record
from flowdist.sim.engine.queue import CRASHES
from flowdist.testing.strategies import NODES
from tests.proofs.conversation import Player
from tests.proofs.judge.facts import Facts
from tests.proofs.judge.restart_rules import Complaint, complaints, crash

LEARNER = 1  # its place among the attempts of publishers, in the order of their names
PUBLISHERS, HOLDERS = ("learner", "critic"), ("actor", "watcher")
VERSIONS = (ev.ReplicaPublished, ev.ReplicaAcknowledged)
Verb = Literal["publish", "acknowledge", "check", "fail", "repeat", "lose", "wait"]
VERBS: tuple[Verb, ...] = (
    *("publish", "publish", "acknowledge", "acknowledge", "acknowledge", "acknowledge"),
    *("check", "fail", "repeat", "lose", "wait"),
)


class VersionMove(NamedTuple):
    """One random action. `which` selects the replica, role, node or report that it concerns, modulo their number."""

    verb: Verb
    which: int = 0
    version: int = 0


class VersionCase(NamedTuple):
    """Case of `judge_versions`: the edge of the actors, whether they have a readiness check as well, and the moves."""

    max_staleness: int
    has_check: bool
    moves: tuple[VersionMove, ...]


def version_cases() -> st.SearchStrategy[VersionCase]:
    """Return a Hypothesis strategy for cases, whose moves are single ones, and those that matter together.

    The latter are a publication of the learner, its acknowledgement by an actor, and what happens then.
    """
    single = st.builds(VersionMove, st.sampled_from(VERBS), st.integers(0, 3), st.integers(0, 4))
    actor, version = st.integers(0, 1), st.integers(0, 3)
    together = st.builds(_moves, actor, version, st.sampled_from(("fail", "publish", "acknowledge")))
    lists = st.lists(single.map(lambda move: (move,)) | together, max_size=10)
    moves = lists.map(lambda parts: tuple(move for part in parts for move in part))
    return st.builds(VersionCase, st.integers(0, 2), st.booleans(), moves)


def _moves(actor: int, version: int, then: Verb) -> tuple[VersionMove, ...]:
    """Return moves in which the learner publishes, the actor has its version, and then one of the two acts again."""
    begin = VersionMove("publish", LEARNER, version), VersionMove("acknowledge", actor, version)
    return (*begin, VersionMove(then, LEARNER if then == "publish" else actor, version + 1))


def _graph(case: VersionCase) -> RoleGraph:
    again = RestartPolicy("replica", max_restarts=100, backoff_ns=0)
    check = Readiness("tcp", "rpc") if case.has_check else None
    actor = RoleSpec(
        "actor",
        ("true",),
        max_replicas=2,
        gang=False,
        primary=False,
        ports=("rpc",),
        ready=check,
        restart=again,
        versions=VersionEdge("learner", case.max_staleness),
    )
    watcher = RoleSpec("watcher", ("true",), gang=False, primary=False, restart=again, versions=VersionEdge("critic"))
    evaluator = RoleSpec("evaluator", ("true",), primary=False, restart=again, gates=(Gate("actor", "ready"),))
    tasks = [RoleSpec(name, ("true",), restart=RestartPolicy(max_restarts=100, backoff_ns=0)) for name in PUBLISHERS]
    nodes = tuple(NodeSpec(name) for name in NODES)
    return RoleGraph("versions", (*tasks, actor, watcher, evaluator), cluster=Cluster(nodes))


def judge_versions(case: VersionCase) -> list[Complaint]:
    """Play the case and return what is wrong; empty if nothing is."""
    player = VersionPlayer(_graph(case))
    try:
        player.play(())
        for move in case.moves:
            player.act(move)
    except CRASHES as error:
        return [crash(error)]
    return player.wrong or complaints(player.lines)


class VersionPlayer(Player):
    """Model of the nodes that compares each phase with the facts after each event; `wrong` has what differs."""

    def __init__(self, graph: RoleGraph) -> None:
        super().__init__(graph)
        self._facts = Facts(self.header)

    def judge(self, line: Record) -> None:
        """Compare which replicas are ready after the event."""
        self._facts.hear(line)
        self._facts.follow(line)
        for replica, run in self._facts.runs.items():
            state = self.controller.state.replicas[replica]
            is_ready = state.phase == "ready"
            if state.phase in ("running", "ready") and is_ready != run.is_ready:
                is_what = "is ready" if is_ready else "is not ready"
                self.wrong.append(Complaint("R23", f"{replica} {is_what} with version {run.version}"))

    def act(self, move: VersionMove) -> None:
        """Apply a move, and carry out the orders that follow from it."""
        match move.verb:
            case "publish" | "acknowledge" | "check" | "fail":
                self._act_on_replica(move)
            case "repeat":
                if old := [event for event in self.past if isinstance(event, VERSIONS)]:
                    self.send(old[-1 - (move.which * 5 + move.version) % len(old)])
            case "lose":
                self.lose(NODES[move.which % len(NODES)])
                self.join(NODES[move.which % len(NODES)])
            case "wait":
                self.wait(1)
        self.calm()

    def _act_on_replica(self, move: VersionMove) -> None:
        """Apply a move to one of the running attempts for which it makes sense, if there is one."""
        names = {"publish": PUBLISHERS, "acknowledge": HOLDERS, "check": HOLDERS[:1]}.get(move.verb)
        keys = [key for key in sorted(self.alive) if names is None or key[0].role in names]
        if not keys:
            return
        key = keys[move.which % len(keys)]
        match move.verb:
            case "publish":
                self.send(ev.ReplicaPublished(*key, move.version))
            case "acknowledge":
                self.send(ev.ReplicaAcknowledged(*key, move.version))
            case "check":
                if self.graph.role(key[0].role).ready is not None:
                    self.send(ev.ReplicaReady(*key))
            case _:
                self.fail(key, "exit")
