"""Property of snapshots in memory (R24): control follows copies as `judge.snapshots` does, without common code.

The job has one gang, whose ranks save their state. Copies come in any order, late, twice, from attempts and generations
that are over; vaults and nodes die, come back, connect again, and break copies.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hypothesis import strategies as st
from msgspec.structs import replace

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import NodeName
from flowdist.graph import Cluster, NodeSpec, RestartPolicy, RoleGraph, RoleSpec, SnapshotSpec
from flowdist.record.journal import Record
from flowdist.sim.engine.queue import CRASHES
from flowdist.testing.strategies import NODES
from tests.proofs.conversation import Player
from tests.proofs.judge.restart_rules import Complaint, crash
from tests.proofs.judge.snapshots import SnapshotJudge

Verb = Literal["save", "own", "copy", "late", "deliver", "fail", "lose", "again", "break", "empty", "open", "commit",
               "step", "repeat", "wait"]  # fmt: skip
VERBS: tuple[Verb, ...] = (
    *("save", "save", "own", "own", "copy", "copy", "late", "late", "deliver", "deliver", "fail", "fail", "lose"),
    *("again", "break", "break", "empty", "open", "commit", "step", "repeat", "wait"),
)
OLD = (ev.CopyHeld, ev.CopyBroken)


class SnapshotMove(NamedTuple):
    """One random action. `which` selects a rank, node or event, and `how` a variant, modulo their numbers."""

    verb: Verb
    which: int = 0
    how: int = 0


class SnapshotCase(NamedTuple):
    """Case of `judge_snapshots`: copies of each shard, workers of a replica, and the moves."""

    copies: int
    procs: int
    moves: tuple[SnapshotMove, ...]


def snapshot_cases() -> st.SearchStrategy[SnapshotCase]:
    """Return a Hypothesis strategy for cases, whose moves are single ones, and those that matter together."""
    which, how = st.integers(0, 7), st.integers(0, 7)
    single = st.builds(SnapshotMove, st.sampled_from(VERBS), which, how).map(lambda move: (move,))
    then = st.sampled_from(("fail", "lose", "break", "copy", "own"))
    together = st.builds(_together, st.sampled_from(("save", "own", "late")), then, which, how)
    lists = st.lists(single | together | st.builds(_in_vain, which, how), max_size=12)
    moves = lists.map(lambda parts: tuple(move for part in parts for move in part))
    return st.builds(SnapshotCase, st.integers(1, 3), st.integers(1, 2), moves)


def _together(first: Verb, then: Verb, which: int, how: int) -> tuple[SnapshotMove, ...]:
    """Return moves in which all save, something happens, the gang fails, and then something else happens."""
    one = SnapshotMove(first, which, how), SnapshotMove(then, which, how)
    return (*one, SnapshotMove("fail", how, which), SnapshotMove("break" if how % 2 else "deliver", which, how))


def _in_vain(which: int, how: int) -> tuple[SnapshotMove, ...]:
    """Return moves in which the gang fails over and over, mostly with a checkpoint, and with something in between."""
    verbs: list[Verb] = ["commit", "save", "fail", "fail", "fail", "fail", "fail", "fail"]
    if how % 2:
        verbs.insert(3 + which % 4, ("step", "lose", "own", "empty")[how // 2])
    return tuple(SnapshotMove(verb, which, 0) for verb in verbs[which == 7 :])


def _graph(case: SnapshotCase) -> RoleGraph:
    again = RestartPolicy(max_restarts=1000, backoff_ns=0)
    snapshots = SnapshotSpec(case.copies)
    role = RoleSpec("trainer", ("true",), max_replicas=3, procs=case.procs, restart=again, snapshots=snapshots)
    return RoleGraph("snapshots", (role,), cluster=Cluster(tuple(NodeSpec(name, cpu=1.0) for name in NODES)))


def judge_snapshots(case: SnapshotCase) -> list[Complaint]:
    """Play the case and return what is wrong; empty if nothing is."""
    player = SnapshotPlayer(_graph(case))
    try:
        player.play(())
        for move in case.moves:
            player.act(move)
    except CRASHES as error:
        return [crash(error)]
    return player.wrong


class SnapshotPlayer(Player):
    """Model of the nodes and their vaults; `wrong` has what the judge says of each line."""

    def __init__(self, graph: RoleGraph) -> None:
        super().__init__(graph)
        self._judge = SnapshotJudge(self.header)
        self._step, self._ports = 0, 7000
        self._vaults: dict[NodeName, int] = {}
        self._held: dict[NodeName, dict[tuple[int, int, int], ev.CopyHeld]] = {}
        self._late: list[ev.CopyHeld] = []

    def judge(self, line: Record) -> None:
        """Have the judge of snapshots hear the line."""
        self.wrong += self._judge.hear(line)

    def join(self, name: NodeName) -> None:
        """Let the node join with a new incarnation and an empty vault."""
        if name in self.up:
            self._forget(name)
        self.incarnations[name], self.up[name] = self.incarnations.get(name, 0) + 1, None
        self._ports += 1
        self._vaults[name], self._held[name] = self._ports, {}
        self._say(name, 1)

    def _say(self, name: NodeName, how: int) -> None:
        """Have an agent join: with all that its vault holds, unless `how` is even, so that it has lost a copy."""
        spec = next(spec for spec in self.graph.cluster.nodes if spec.name == name)
        items = tuple(ev.InventoryItem(*key, "running") for key, start in self.alive.items() if start.node == name)
        held = self._held[name]
        if held and how % 2 == 0:
            del held[list(held)[how % len(held)]]
        said = {"inventory": items, "vault_port": self._vaults[name], "copies": tuple(held.values())}
        self.send(ev.NodeJoined(name, spec, incarnation=self.incarnations[name], **said))  # type: ignore[arg-type]

    def act(self, move: SnapshotMove) -> None:
        """Apply a move, and carry out the orders that follow from it."""
        nodes, node = list(self.up), NODES[move.which % len(NODES)]
        match move.verb:
            case "save" | "own" | "late":
                self._step += move.how % 3
                for number, start in enumerate(list(self.alive.values())):
                    self._save(start, move.verb, number, move)
            case "copy":
                starts = list(self.alive.values())
                if starts and nodes:
                    start = starts[move.which % len(starts)]
                    self._hold(self._copy(start, start.rank, nodes[move.how % len(nodes)], move.how))
            case "deliver" if self._late:
                self._hold(self._late.pop(move.which % len(self._late)))
            case "fail" if self.alive:
                self._fail(move)
            case "lose":
                self.lose(node, (ev.NodeGone, ev.NodeSilent, ev.NodeLeft)[move.how % 3])
                self.join(node)
            case "again" if node in self.up:
                self.orders = [order for order in self.orders if order.node != node]
                self._say(node, move.how)
            case "break" if self._held.get(node):
                copy = list(self._held[node].values())[move.how % len(self._held[node])]
                del self._held[node][copy.generation, copy.step, copy.rank]
                self.send(ev.CopyBroken(copy.world, copy.generation, copy.step, copy.rank, node))
            case "empty" | "open" if node in self.up:
                self._ports += 1
                self._held[node], self._vaults[node] = {}, self._ports if move.verb == "open" else 0
                self.send(ev.VaultOpened(node, self._ports) if move.verb == "open" else ev.VaultLost(node))
            case "repeat":
                if old := [event for event in self.past if isinstance(event, OLD)]:
                    self.send(old[-1 - (move.which * 5 + move.how) % len(old)])
            case "wait":
                self.wait(1)
            case "commit" | "step" if self.alive:
                self._act_on_replica(move)
            case _:
                pass
        self.calm()

    def _fail(self, move: SnapshotMove) -> None:
        """End an attempt; with an odd number, all save at the same time, and its copy comes after its end."""
        key = sorted(self.alive)[move.which % len(self.alive)]
        start, self._step = self.alive[key], self._step + move.how % 2
        for other in [each for each in self.alive.values() if each is not start and move.how % 2]:
            self._save(other, "own", 0, move)
        self.fail(key, "exit")
        if move.how % 2:
            self._save(start, "own", 0, move)

    def _act_on_replica(self, move: SnapshotMove) -> None:
        keys = sorted(self.alive)
        key = keys[move.which % len(keys)]
        if move.verb == "commit":
            step = max(0, self._step + 1 - move.how % 3)
            self.send(ev.CheckpointOffered(*key, self.alive[key].generation, f"step-{step}", step))
        else:
            self.send((ev.ReplicaStepped, ev.ReplicaProgressed)[move.how % 2](*key, self._step + 1))

    def _save(self, start: StartReplica, verb: Verb, number: int, move: SnapshotMove) -> None:
        """Save the shards of a replica: on its own node, and with "save" on others; with "late" the last come later."""
        nodes = list(self.up)
        for rank in range(start.rank, start.rank + self.graph.role("trainer").procs):
            for holder in [start.node, *(nodes if verb == "save" else ())]:
                copy = self._copy(start, rank, holder, 1)
                if verb == "late" and number == move.which % 3:
                    self._late.append(copy)
                else:
                    self._hold(copy)

    def _copy(self, start: StartReplica, rank: int, holder: NodeName, how: int) -> ev.CopyHeld:
        """Return an acknowledgement; with some numbers `how` it is of an earlier generation, or of another content."""
        digest = f"{start.generation}/{self._step}/{rank}"
        found = ev.CopyHeld("trainer", start.generation, self._step, rank, holder, start.world_size, 1, digest)
        if how == 5 and start.generation > 1:
            return replace(found, generation=start.generation - 1)
        return replace(found, digest="other") if how == 6 else found

    def _hold(self, copy: ev.CopyHeld) -> None:
        if copy.node in self.up and self._vaults[copy.node]:
            self._held[copy.node][copy.generation, copy.step, copy.rank] = copy
            self.send(copy)
