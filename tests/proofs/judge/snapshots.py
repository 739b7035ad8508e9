"""Judge of snapshots (R24): which copies count, what generations go on from, and what may be released, from a record.

It follows the copies by the events alone, in its own way, and shares no code with the controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AnswerCheckpoint,
    Decided,
    ReleaseCopies,
    SetBuddies,
    StartReplica,
    StopReplica,
)
from flowdist.control.protocol.ids import NodeName, WorldName
from flowdist.record.journal import Header, Line, Record
from tests.proofs.judge.facts import Facts
from tests.proofs.judge.restart_rules import Complaint

UNREAD = 5  # generations in a row


class Key(NamedTuple):
    """Name of a snapshot: those of one world sort by age."""

    world: WorldName
    generation: int
    step: int


def snapshot_complaints(lines: Iterable[Line]) -> list[Complaint]:
    """Judge a record by R24, and return what is wrong with the first line that breaks it; empty if none does."""
    judge: SnapshotJudge | None = None
    for line in lines:
        if isinstance(line, Header):
            judge = SnapshotJudge(line)
        elif isinstance(line, Record):
            assert judge is not None
            if found := judge.hear(line):
                return found
    return []


class SnapshotJudge:
    """Judge of one record, line by line: `hear` returns what is wrong with a line."""

    def __init__(self, header: Header) -> None:
        self.facts = Facts(header)
        self.sizes: dict[Key, int] = {}
        self.held: dict[Key, dict[int, dict[NodeName, str]]] = {}  # by rank and holder: the digest
        self.vaults: dict[NodeName, int] = {}
        self.committed: dict[WorldName, int] = {}  # step of the latest accepted checkpoint
        self.reading: dict[WorldName, Key] = {}
        self.named: dict[WorldName, list[set[NodeName]]] = {}  # who holds each shard, as the members have heard
        # Generations in a row in which a member has ended before the first step with a snapshot: all of them, and those
        # since a node was last lost, which may have been the cause.
        self.unread: dict[WorldName, dict[int, None]] = {}
        self.surely_unread: dict[WorldName, dict[int, None]] = {}
        self.given_up: dict[WorldName, None] = {}  # in the present line
        self._wrong: list[Complaint] = []

    def hear(self, line: Record) -> list[Complaint]:
        """Follow a line, and return its complaints."""
        self._wrong, facts, event = [], self.facts, line.event
        before, runs, many = dict(facts.incarnations), dict(facts.runs), len(facts.nodes)
        facts.hear(line)
        if not facts.is_ending:
            self._note(event, before)
        self._note_reading(event, runs)
        if len(facts.nodes) < many:
            self.surely_unread.clear()
        self._note_given_up(line)
        for effect in line.effects:
            match effect:
                case StartReplica():
                    self._judge_start(effect)
                case ReleaseCopies():
                    self._judge_release(effect)
                case SetBuddies():
                    self._judge_buddies(effect)
                case StopReplica():
                    self.reading.pop(facts.world_of(effect.replica), None)
                case AnswerCheckpoint() if effect.accepted:
                    self.committed[facts.world_of(effect.replica)] = effect.step
                case _:
                    pass
        facts.follow(line)
        for world, key in () if facts.is_ending else self.reading.items():
            held = [self.held[key].get(rank, {}) if key in self.held else {} for rank in range(len(self.named[world]))]
            if not all(names & here.keys() for names, here in zip(self.named[world], held, strict=True)):
                self._complain(f"{world} goes on reading {key}, which has lost a shard")
        return self._wrong

    def _note_given_up(self, line: Record) -> None:
        """Note which worlds give up their snapshots in a line, after five generations in a row or with the budget."""
        named = [each for each in line.effects if isinstance(each, Decided) and each.what == "snapshots_given_up"]
        self.given_up = {each.about: None for each in named}
        for world in self.given_up:
            if world not in self.committed:
                self._complain(f"{world} gives up its snapshots, and has no checkpoint")
            if len(self.unread.get(world, ())) < UNREAD:
                self._complain(f"{world} gives up its snapshots after {self.unread.get(world, ())}")
            for known in (self.unread, self.surely_unread):
                known.pop(world, None)

    def _complain(self, text: str) -> None:
        self._wrong.append(Complaint("R24", text))

    def _least(self, key: Key) -> int:
        """Return how many copies each shard of a snapshot has at least."""
        ranks = self.held.get(key, {})
        return min([len(ranks.get(rank, ())) for rank in range(self.sizes[key])]) if key in self.sizes else 0

    def _note(self, event: ev.Event, before: dict[NodeName, int]) -> None:
        """Follow the copies that come and go with an event."""
        match event:
            case ev.NodeJoined() if event.incarnation >= before.get(event.node, 0):
                listed = {(Key(each.world, each.generation, each.step), each.rank) for each in event.copies}
                is_same = event.incarnation == before.get(event.node)
                self._drop(event.node, lambda key, rank: not is_same or (key, rank) not in listed)
                self.vaults[event.node] = event.vault_port
                for copy in event.copies:
                    self._hold(copy)
            case ev.VaultOpened() | ev.VaultLost():
                self._drop(event.node, lambda key, rank: True)
                self.vaults[event.node] = event.port if isinstance(event, ev.VaultOpened) else 0
            case ev.CopyBroken():
                broken = (Key(event.world, event.generation, event.step), event.rank)
                self._drop(event.node, lambda key, rank: (key, rank) == broken)
            case ev.CopyHeld():
                self._hold(event)
            case _:
                pass
        for node in [node for node in self.vaults if node not in self.facts.nodes]:
            del self.vaults[node]
            self._drop(node, lambda key, rank: True)

    def _drop(self, node: NodeName, is_lost) -> None:  # type: ignore[no-untyped-def]
        for key, ranks in self.held.items():
            for rank, holders in ranks.items():
                if node in holders and is_lost(key, rank):
                    del holders[node]

    def _hold(self, copy: ev.CopyHeld) -> None:
        """Record a copy, if it is of a member that runs, in the generation in which it does (R19)."""
        key, facts = Key(copy.world, copy.generation, copy.step), self.facts
        owner = [
            run.start
            for run in facts.members(copy.world)
            if 0 <= copy.rank - run.start.rank < facts.specs[run.start.replica.role].procs
        ]
        if copy.node not in facts.nodes or all(spec.snapshots is None for spec in facts.roles_in(copy.world)):
            return
        is_present = bool(owner) and copy.generation == owner[0].generation == facts.generations[copy.world]
        holders = self.held.get(key, {}).get(copy.rank, {})
        if not holders and (not is_present or copy.world_size != owner[0].world_size or copy.step < 0):
            return  # a copy more of what was acknowledged in time always counts
        holders = self.held.setdefault(key, {}).setdefault(copy.rank, {})
        if all(digest == copy.digest for digest in holders.values()):
            self.sizes[key], holders[copy.node] = copy.world_size, copy.digest
            if is_present:
                self._has_read(copy.world)

    def _has_read(self, world: WorldName) -> None:
        for known in (self.reading, self.unread, self.surely_unread):
            known.pop(world, None)

    def _note_reading(self, event: ev.Event, runs: dict) -> None:  # type: ignore[type-arg]
        """Forget that a generation reads once it steps, or a member of it has ended."""
        for world in list(self.reading):
            members = [run for run in runs.values() if run.start.world == world]
            if any(self.facts.current(run.start.replica, run.start.attempt) is None for run in members):
                del self.reading[world]
                if isinstance(event, ev.ReplicaExited):
                    for known in (self.unread, self.surely_unread):
                        known.setdefault(world, {})[members[0].start.generation] = None
        if isinstance(event, ev.ReplicaStepped) or (isinstance(event, ev.ReplicaProgressed) and event.step > 0):
            run = self.facts.current(event.replica, event.attempt)
            self._has_read(run.start.world if run is not None else "")

    def _whole(self, world: WorldName) -> list[Key]:
        return sorted(key for key in self.held if key.world == world and self._least(key))

    def _judge_start(self, start: StartReplica) -> None:
        """Compare what a start order goes on from with the newest whole snapshot, or none if a checkpoint is further.

        An order that is repeated to an agent that has connected again is as it was.
        """
        run = self.facts.current(start.replica, start.attempt)
        if run is not None:
            if run.start != start:
                self._complain(f"{start.replica} gets another order for attempt {start.attempt}")
            return
        whole = self._whole(start.world)
        wanted = whole[-1] if whole and whole[-1].step >= self.committed.get(start.world, 0) else None
        if start.world in self.given_up:
            wanted = None
        chosen = start.snapshot
        found = None if chosen is None else Key(start.world, chosen.generation, chosen.step)
        if found != wanted:
            self._complain(f"{start.replica} goes on from {found}, not from {wanted}")
        elif (
            wanted is not None
            and start.world in self.committed
            and len(self.surely_unread.get(start.world, ())) >= UNREAD
        ):
            self._complain(f"{start.replica} goes on from {found}, which nobody could read {UNREAD} times in a row")
        elif chosen is not None and wanted is not None:
            holders = [set(self.held[wanted][rank]) for rank in range(self.sizes[wanted])]
            if [set(names) for names in chosen.holders()] != holders or chosen.world_size != self.sizes[wanted]:
                self._complain(f"{start.replica} reads {found} from {chosen.holders()}, and it is held by {holders}")
            if wanted.generation >= start.generation:
                self._complain(f"{start.replica} goes on from {found}, which is not older than its generation")
            self.reading[start.world], self.named[start.world] = wanted, holders

    def _judge_release(self, order: ReleaseCopies) -> None:
        """Judge a release: what is whole goes only after what is newer, and if it is full, only after what is full."""
        key = Key(order.world, order.generation, order.step)
        least = 0 if order.world in self.given_up else self._least(key)
        newer = [self._least(other) for other in self._whole(order.world) if other > key]
        if least and self.facts.members(order.world):
            members = {run.start.node for run in self.facts.members(order.world)}
            copies = max(spec.snapshots.copies for spec in self.facts.roles_in(order.world) if spec.snapshots)
            has_all = len(members) >= copies and all(self.vaults.get(node) for node in members)
            if not newer:
                self._complain(f"{key}, the last whole snapshot, is released")
            elif has_all and least >= copies > max(newer):
                self._complain(f"{key} is released, the last one with {copies} copies")
        self.held.pop(key, None)
        self.sizes.pop(key, None)

    def _judge_buddies(self, order: SetBuddies) -> None:
        """Judge buddies: other nodes of the world, with the addresses of their vaults, as many as there can be."""
        starts = [run.start for run in self.facts.members(order.world)]
        if not starts or len(starts) != starts[0].group_world_size:
            return  # the node of a member that has ended still counts, until the world forms anew
        nodes = {start.node for start in starts if self.vaults.get(start.node)}
        copies = max(spec.snapshots.copies for spec in self.facts.roles_in(order.world) if spec.snapshots)
        names = [name for name, _ in order.buddies]
        is_right = len(set(names)) == len(names) and set(names) <= nodes - {order.node}
        if not is_right or len(names) != min(copies, len(nodes)) - 1:
            self._complain(f"{order.node} has the buddies {names}, of {sorted(nodes)}")
        if any(not address.endswith(f":{self.vaults.get(name)}") for name, address in order.buddies):
            self._complain(f"{order.node} gets an old address in {order.buddies}")
