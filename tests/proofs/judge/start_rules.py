"""Restart rules about starts: gates, ranks, seats, GPUs and room. `restart_rules` applies them to each line of a
record.

Each check gets the facts after the event of the line and before its effects, and yields the number of a broken rule and
what breaks it. It yields nothing for a correct line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import OpenStore, StartReplica, StopReplica
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph import WHOLE, Gate
from flowdist.record.journal import Record
from tests.proofs.judge.facts import Facts

Found = Iterator[tuple[str, str]]  # rule, and what breaks it


def opens(facts: Facts, line: Record) -> Found:
    """Check each order to open a store, which begins a generation (R1, R2, R4).

    Generations count up by one. No member runs in the last generation any more. The gates of the world's roles are
    open. The first start of the job waits for the expected nodes. A repeated order after a lost connection is correct.
    """
    for effect in (effect for effect in line.effects if isinstance(effect, OpenStore)):
        last = facts.generations.get(effect.world, 0)
        if effect.generation == last and isinstance(line.event, ev.NodeJoined):
            continue  # the connection was lost: the order is repeated
        if effect.generation != last + 1:
            yield "R4", f"generation {effect.generation} of {effect.world} follows {last}"
        for run in facts.members(effect.world):
            yield "R4", f"a generation of {effect.world} opens while {run.start.replica} runs in the last"
        for spec in facts.roles_in(effect.world):
            for gate in spec.gates:
                if not _is_open(facts, gate):
                    yield "R1", f"{effect.world} starts before {gate.role} is {gate.condition}"
        if not facts.generations:
            yield from _admission(facts, line)


def _is_open(facts: Facts, gate: Gate) -> bool:
    """Return whether a gate is open: enough replicas of its role have started, are ready or have succeeded."""
    spec = facts.specs[gate.role]
    done = sum(replica.role == gate.role for replica in facts.done)
    if gate.condition == "succeeded":
        return done > 0 and not any(replica.role == gate.role for replica in facts.runs)
    runs = [run for replica, run in facts.runs.items() if replica.role == gate.role and not run.is_stopping]
    up = sum(run.is_up and (run.is_ready or gate.condition == "started") for run in runs)
    return up + done >= spec.min_replicas


def _admission(facts: Facts, line: Record) -> Found:
    """Check the first start: all expected nodes have joined or had the time to, and all minima have room (R2)."""
    window = max(spec.join_window_ns for spec in facts.graph.roles)
    assert facts.first_join_ns is not None
    if facts.expected and line.t_ns < facts.first_join_ns + window:
        yield "R2", f"the job starts without waiting for {', '.join(facts.expected)}"
    first = [spec for spec in facts.graph.roles if not facts.graph.to_succeed_before(spec.name)]
    wanted = sum(round(spec.resources.cpu * 1000) * spec.min_replicas for spec in first)
    room = sum(round(node.cpu * 1000) for node in facts.nodes.values())
    if wanted > room:
        yield "R2", f"the job starts with room for {room / 1000:g} cpu, and its minima need {wanted / 1000:g}"


def starts(facts: Facts, line: Record) -> Found:
    """Check each order to start a replica (R2, R3, R4, R19, R20, and GPUs).

    Attempts count up by one. No other attempt of the replica runs. Its node is up and its store is open. Every member
    of its world is in the same generation. Its GPUs are free and good. A repeated order after a lost connection is
    correct.
    """
    groups: dict[tuple[WorldName, int], list[StartReplica]] = {}
    for start in (effect for effect in line.effects if isinstance(effect, StartReplica)):
        name, last = start.replica, facts.attempts.get(start.replica, 0)
        running = facts.runs.get(name)
        if running is not None and running.start == start and isinstance(line.event, ev.NodeJoined):
            continue  # the connection was lost: the order is repeated
        groups.setdefault((start.world, start.generation), []).append(start)
        if start.attempt != last + 1:
            yield "R20", f"attempt {start.attempt} of {name} follows attempt {last}"
        if running is not None:
            yield "R19", f"{name} starts while attempt {running.start.attempt} of it runs"
        if start.node not in facts.nodes:
            yield "R19", f"{name} starts on {start.node}, which is not up"
        if facts.ports.get((start.world, start.generation)) != start.master_port:
            yield "R4", f"{name} starts before the store of generation {start.generation} is open"
        for run in facts.members(start.world):
            if run.start.generation != start.generation:
                yield "R4", f"{name} starts while {run.start.replica} runs in generation {run.start.generation}"
        yield from _devices(facts, line, start)
    for starts in groups.values():
        yield from _ranks(facts, starts)
        yield from _room_for_later(facts, starts)


def in_place(facts: Facts, line: Record) -> Found:
    """Check orders about suspended workers (R6, R19, and GPUs).

    Only replicas that have reported that they can are stopped in place. Workers that are suspended on a node start
    again on that node, or are stopped. No other replica gets their GPUs as long as they wait.
    """
    stopped: set[ReplicaId] = set()
    for effect in line.effects:
        if isinstance(effect, StopReplica):
            stopped.add(effect.replica)
            run = facts.current(effect.replica, effect.attempt)
            if effect.in_place and run is not None and not run.is_elastic:
                yield "R6", f"{effect.replica} is to stay in place, and has never reported that it can"
        if not isinstance(effect, StartReplica):
            continue
        waits = facts.suspended.get(effect.replica)
        if waits is not None and waits.node != effect.node and effect.replica not in stopped:
            yield "R19", f"{effect.replica} starts on {effect.node} while workers of it wait on {waits.node}"
        for other in facts.suspended.values():
            is_there = other.replica not in {effect.replica, *stopped} and other.node == effect.node
            if is_there and _too_many(facts, effect, [other]):
                yield "GPU", f"{effect.replica} gets a GPU of {other.replica}, which waits with it"


def _devices(facts: Facts, line: Record, start: StartReplica) -> Found:
    """Check that the GPUs of a start are free on its node, and not known to be bad."""
    others = [run.start for run in facts.runs.values()] + facts.stuck
    others += [other for other in line.effects if isinstance(other, StartReplica) and other is not start]
    if twice := _too_many(facts, start, [other for other in others if other.node == start.node]):
        yield "GPU", f"{start.replica} gets GPU {min(twice)} of {start.node}, which is taken"
    if bad := [gpu for gpu in start.gpus if gpu in facts.bad_gpus.get(start.node, ())]:
        yield "GPU", f"{start.replica} gets GPU {bad[0]} of {start.node}, which is bad"


def _too_many(facts: Facts, start: StartReplica, others: list[StartReplica]) -> list[int]:
    """Return the numbers of a start's GPUs that would be over-booked: the shares in one exceed a whole GPU.

    Args:
        facts: The facts of the job.
        start: The start that is checked.
        others: Other attempts on the same node, whose shares count too.
    """
    shares = {spec.name: spec.resources.gpu_share for spec in facts.graph.roles}
    taken = Counter(dict.fromkeys(start.gpus, shares[start.replica.role]))
    for other in others:
        taken.update({gpu: shares[other.replica.role] for gpu in other.gpus if gpu in taken})
    return [gpu for gpu, share in taken.items() if share > WHOLE]


def _ranks(facts: Facts, starts: list[StartReplica]) -> Found:
    """Check the ranks of the starts of one generation (R3).

    Ranks are 0..N-1 in the order of role and replica. The source rank is the first rank of a replica that was a member
    before, if any such replica starts.
    """
    order = {spec.name: i for i, spec in enumerate(facts.graph.roles)}
    world = starts[0].world
    rank, size = 0, sum(_procs(facts, start) for start in starts)
    before = facts.since.get(world, {})
    for place, start in enumerate(sorted(starts, key=lambda start: (order[start.replica.role], start.replica.index))):
        found = (start.rank, start.world_size, start.group_rank, start.group_world_size)
        if found != (should := (rank, size, place, len(starts))):
            yield "R3", f"{start.replica} is given {found}, it should be {should}"
        rank += _procs(facts, start)
    sources = [start.replica for start in starts if start.rank == starts[0].source_rank]
    if len(sources) != 1:
        yield "R3", f"the source of {world} is rank {starts[0].source_rank}, the first of no replica"
    stayed = [start.replica for start in starts if start.replica in before]
    if stayed and sources and sources[0] not in stayed:
        names = ", ".join(map(str, stayed))
        yield "R3", f"the source of {world} is {sources[0]}, which has just joined, not one of {names}"


def _procs(facts: Facts, start: StartReplica) -> int:
    """Return the number of workers of the started replica on its node."""
    return facts.specs[start.replica.role].procs_on(facts.nodes[start.node])


def _room_for_later(facts: Facts, starts: list[StartReplica]) -> Found:
    """Check that growth beyond a minimum leaves room (cpu) for the minima of roles that have not started yet (R2).

    The check applies only while no node was lost and no replica was retired: after that a replica may keep a seat that
    another role's minimum needs. Roles that have to succeed before the later role starts no longer need their room by
    then.
    """
    new = [start for start in starts if facts.seats.get(start.replica) != start.node]
    names = [*facts.runs, *(start.replica for start in starts)]
    cpu = {spec.name: round(spec.resources.cpu * 1000) for spec in facts.graph.roles}
    grown = [start for start in new if count(names, start.replica.role) > facts.specs[start.replica.role].min_replicas]
    if not grown or not facts.is_calm:
        return
    room = sum(round(node.cpu * 1000) for node in facts.nodes.values())
    for later in facts.graph.roles:
        if count(names, later.name) or count(facts.done, later.name):
            continue
        before = facts.graph.to_succeed_before(later.name)
        taken = sum(cpu[name.role] for name in names if name.role not in before)
        if taken + cpu[later.name] * later.min_replicas > room:
            yield "R2", f"{grown[0].replica} takes the room that the minimum of {later.name} needs"


def count(replicas: Iterable[ReplicaId], role: str) -> int:
    """Return how many of the replicas belong to the role."""
    return sum(replica.role == role for replica in replicas)
