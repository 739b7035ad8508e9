"""Restart rules checked on a record: an independent judge of the events and effects of a job.

The judge shares no code with the controller and never reads its state. It does not judge what the record does not show.
Each check is named after its rule in docs/restarts.md, and yields the rule and what breaks it.
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import (
    AnswerCheckpoint,
    AskStep,
    FinishJob,
    Notify,
    OpenStore,
    StartReplica,
    StopAtStep,
    StopReplica,
)
from flowdist.control.protocol.ids import ReplicaId, WorldName
from flowdist.graph import WHOLE, Gate, RoleSpec
from flowdist.record.facts import Facts, Run
from flowdist.record.journal import Header, Line, Record


class Complaint(NamedTuple):
    """Broken rule. `rule` is its number, such as `R6`; `text` names the replicas and the time."""

    rule: str
    text: str


CRASHES = (AssertionError, KeyError, ValueError, StopIteration, TypeError, AttributeError)


def crash(error: Exception) -> Complaint:
    """Return the complaint about an exception in control: a broken invariant, or a crash."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, AssertionError) and str(error):
        return Complaint("invariant", str(error))
    return Complaint("crash", f"{error!r} in {place.name}: {place.line}")


def complaints(lines: Iterable[Line]) -> list[Complaint]:
    """Return every broken rule, in the order of the record.

    Args:
        lines: The lines of the record, with the header first.
    """
    lines = iter(lines)
    header = next(lines)
    assert isinstance(header, Header), "a record begins with its header"
    facts = Facts(header)
    records = [line for line in lines if isinstance(line, Record)]
    found: list[Complaint] = []
    for line in records:
        found += [
            Complaint(rule, f"{text} (at {line.t_ns / 1e9:g}s, line {line.n})") for rule, text in _judge(facts, line)
        ]
    return found + [Complaint(rule, text) for rule, text in _all_gone_first(header, records)]


Found = Iterator[tuple[str, str]]


def _judge(facts: Facts, line: Record) -> Found:
    was_running = dict(facts.runs)
    yield from _late_to_finish(facts, line)
    yield from _epochs(facts, line)
    facts.hear(line)
    yield from _opens(facts, line)
    yield from _starts(facts, line)
    yield from _in_place(facts, line)
    yield from _stops_in_order(facts, line)
    yield from _growth(facts, line)
    yield from _steps(facts, line)
    yield from _hangs(facts, line)
    yield from _checkpoints(facts, line)
    yield from _services(was_running, facts, line)
    yield from _too_early(was_running, facts, line)
    yield from _refusals(facts, line)
    facts.follow(line)
    if any(isinstance(effect, FinishJob) for effect in line.effects):
        yield from (("R18", f"the job is over while {replica} runs") for replica in [*facts.runs, *facts.suspended])


def _epochs(facts: Facts, line: Record) -> Found:
    """Check that each controller has a higher epoch than the one before it (R21)."""
    if isinstance(line.event, ev.ControllerStarted) and not facts.is_over:
        if line.event.epoch <= facts.epoch:
            yield "R21", f"a controller of epoch {line.event.epoch} follows one of epoch {facts.epoch}"
        facts.epoch = line.event.epoch


def _opens(facts: Facts, line: Record) -> Found:
    for effect in line.effects:
        if not isinstance(effect, OpenStore):
            continue
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
    first = [spec for spec in facts.graph.roles if not _before_success(facts, spec)]
    wanted = sum(round(spec.resources.cpu * 1000) * spec.min_replicas for spec in first)
    room = sum(round(node.cpu * 1000) for node in facts.nodes.values())
    if wanted > room:
        yield "R2", f"the job starts with room for {room / 1000:g} cpu, and its minima need {wanted / 1000:g}"


def _starts(facts: Facts, line: Record) -> Found:
    groups: dict[tuple[WorldName, int], list[StartReplica]] = {}
    for start in line.effects:
        if not isinstance(start, StartReplica):
            continue
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


def _in_place(facts: Facts, line: Record) -> Found:
    """Check that only elastic replicas stay in place, and suspended workers restart there or are stopped (R6, R19)."""
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
    others = [run.start for run in facts.runs.values()] + facts.stuck
    others += [other for other in line.effects if isinstance(other, StartReplica) and other is not start]
    if twice := _too_many(facts, start, [other for other in others if other.node == start.node]):
        yield "GPU", f"{start.replica} gets GPU {min(twice)} of {start.node}, which is taken"
    if bad := [gpu for gpu in start.gpus if gpu in facts.bad_gpus.get(start.node, ())]:
        yield "GPU", f"{start.replica} gets GPU {bad[0]} of {start.node}, which is bad"


def _too_many(facts: Facts, start: StartReplica, others: list[StartReplica]) -> list[int]:
    """Return the GPUs of a start that would be shared by more than a whole, with other attempts on the same node."""
    shares = {spec.name: spec.resources.gpu_share for spec in facts.graph.roles}
    taken = Counter(dict.fromkeys(start.gpus, shares[start.replica.role]))
    for other in others:
        taken.update({gpu: shares[other.replica.role] for gpu in other.gpus if gpu in taken})
    return [gpu for gpu, share in taken.items() if share > WHOLE]


def _ranks(facts: Facts, starts: list[StartReplica]) -> Found:
    """Check that ranks are 0..N-1 in the order of role and replica, and that the source is no new member (R3)."""
    order = {spec.name: i for i, spec in enumerate(facts.graph.roles)}
    world = starts[0].world
    rank = 0
    size = sum(_procs(facts, start) for start in starts)
    before = facts.since.get(world, {})
    sources = []
    for place, start in enumerate(sorted(starts, key=lambda start: (order[start.replica.role], start.replica.index))):
        procs = _procs(facts, start)
        found = (start.rank, start.world_size, start.group_rank, start.group_world_size)
        if found != (rank, size, place, len(starts)):
            yield "R3", f"{start.replica} is given {found}, it should be {(rank, size, place, len(starts))}"
        if start.rank == starts[0].source_rank:
            sources.append(start.replica)
        rank += procs
    if len(sources) != 1:
        yield "R3", f"the source of {world} is rank {starts[0].source_rank}, the first of no replica"
    stayed = [start.replica for start in starts if start.replica in before]
    if stayed and sources and sources[0] not in stayed:
        yield (
            "R3",
            f"the source of {world} is {sources[0]}, which has just joined, not one of {', '.join(map(str, stayed))}",
        )


def _procs(facts: Facts, start: StartReplica) -> int:
    return facts.specs[start.replica.role].procs_on(facts.nodes[start.node])


def _room_for_later(facts: Facts, starts: list[StartReplica]) -> Found:
    """Check that growth leaves room for the minima of roles that have not started yet (R2).

    The check applies only while no node was lost and no replica was retired: a seat is kept, whatever happens to the
    others. Roles that have to succeed before a role starts do not run any more by then.
    """
    new = [start for start in starts if facts.seats.get(start.replica) != start.node]
    names = [*facts.runs, *(start.replica for start in starts)]
    cpu = {spec.name: round(spec.resources.cpu * 1000) for spec in facts.graph.roles}
    grown = [start for start in new if _count(names, start.replica.role) > facts.specs[start.replica.role].min_replicas]
    if not grown or not facts.is_calm:
        return
    room = sum(round(node.cpu * 1000) for node in facts.nodes.values())
    for later in facts.graph.roles:
        if _count(names, later.name) or _count(facts.done, later.name):
            continue
        before = _before_success(facts, later)
        taken = sum(cpu[name.role] for name in names if name.role not in before)
        if taken + cpu[later.name] * later.min_replicas > room:
            yield "R2", f"{grown[0].replica} takes the room that the minimum of {later.name} needs"


def _count(replicas: Iterable[ReplicaId], role: str) -> int:
    return sum(replica.role == role for replica in replicas)


def _before_success(facts: Facts, spec: RoleSpec) -> set[str]:
    """Return the roles that have to succeed before this one starts. A joint world starts, and succeeds, as one."""
    gates = [gate for mate in _mates(facts, spec.name) for gate in facts.specs[mate].gates]
    found = {mate for gate in gates if gate.condition == "succeeded" for mate in _mates(facts, gate.role)}
    return found.union(*(_before_success(facts, facts.specs[gate.role]) for gate in gates))


def _mates(facts: Facts, role: str) -> tuple[str, ...]:
    world = facts.graph.world_of(role)
    return world.roles if world is not None else (role,)


def _stops_in_order(facts: Facts, line: Record) -> Found:
    """Check that dependents are stopped before the roles that they depend on (R6).

    The order holds within one incident. Ignored replicas, and those on a node that is given up, end by themselves, and
    orders that are repeated to a node that is back come in no order.
    """
    if isinstance(line.event, ev.ReplicaUnkillable | ev.NodeJoined) or "; ignored: " in line.reason:
        return
    for together in _stopped_together(line):
        stopped: list[ReplicaId] = []
        for stop in together:
            if facts.current(stop.replica, stop.attempt) is None:
                continue
            for upstream in stopped:
                if _depends(facts, stop.replica.role, upstream.role):
                    yield "R6", f"{upstream} is stopped before {stop.replica}, which depends on it"
            stopped.append(stop.replica)


def _stopped_together(line: Record) -> list[list[StopReplica]]:
    """Return the stops of a line, incident by incident: the message about an incident follows its stops."""
    groups: list[list[StopReplica]] = [[]]
    for effect in line.effects:
        if isinstance(effect, StopReplica):
            groups[-1].append(effect)
        if isinstance(effect, Notify) and effect.text.startswith("incident "):
            groups.append([])
    return groups


def _depends(facts: Facts, role: str, upstream: str) -> bool:
    gates = facts.specs[role].gates
    return any(gate.role == upstream or _depends(facts, gate.role, upstream) for gate in gates)


def _growth(facts: Facts, line: Record) -> Found:
    """Check that a world grows only after its cool-down, and while no member has finished (R13, R17)."""
    grows = re.search(r"incident \d+: room for (\S+/\d+)", line.reason)
    if grows is None:
        return
    role, _, index = grows[1].rstrip(",;").rpartition("/")
    world = facts.world_of(ReplicaId(role, int(index)))
    if facts.world_done.get(world):
        yield "R17", f"{world} grows, and {min(facts.world_done[world])} has finished"
    formed = facts.formed_ns.get(world)
    specs = facts.roles_in(world)
    cooldown = max(spec.cooldown_ns for spec in specs) if facts.generations[world] > 1 else 0
    if not any(spec.name in facts.scaled for spec in specs) and (formed is None or line.t_ns < formed + cooldown):
        yield "R13", f"{world} grows before its cool-down is over"


def _too_early(was_running: dict[ReplicaId, Run], facts: Facts, line: Record) -> Found:
    """Check that no failure fails the job while a peer runs on a node that may be lost: the loss may be the cause (R8).

    For an exit or a signal that is every other node; for other failures it is every suspected node.
    """
    event = line.event
    if not isinstance(event, ev.ReplicaExited) or event.replica not in was_running:
        return
    failed = was_running[event.replica].start
    verdict = f"the job fails: {event.replica} failed on"
    if not any(isinstance(effect, Notify) and effect.text.startswith(verdict) for effect in line.effects):
        return
    doubtful = facts.nodes.keys() - {failed.node}
    if event.kind not in (None, "exit", "signal"):
        doubtful &= facts.suspected.keys()
    for run in facts.members(failed.world):
        if run.start.node in doubtful:
            yield "R8", f"the job fails by {event.replica}, and {run.start.node}, with {run.start.replica}, may be lost"


def _late_to_finish(facts: Facts, line: Record) -> Found:
    """Check that a member that has not finished `finish_timeout` after the first one counts as hanging (R17).

    A line later than the deadline is no proof: it may be the one in which the deadline is handled. A second one is.
    """
    for world, done in facts.world_done.items():
        late = [run for run in facts.members(world) if not run.is_stopping]
        if done and late and not facts.is_ending:
            due = min(done.values()) + max(spec.finish_timeout_ns for spec in facts.roles_in(world))
            if line.t_ns >= facts.last_ns > max(due, facts.grace_until_ns):
                yield "R17", f"{late[0].start.replica} has not finished in time, and nothing follows"


def _steps(facts: Facts, line: Record) -> Found:
    """Check that the step at which a world stops lies after the furthest step that a member has answered (R14)."""
    for effect in line.effects:
        if isinstance(effect, AskStep):
            run = facts.current(effect.replica, effect.attempt)
            if run is not None and not isinstance(line.event, ev.NodeJoined):
                run.has_answered, run.answered_step = False, None
        if isinstance(effect, StopAtStep) and effect.step is not None:
            for run in facts.members(facts.world_of(effect.replica)):
                if run.has_answered and (run.answered_step is None or run.answered_step >= effect.step):
                    yield (
                        "R14",
                        f"{effect.replica} is to stop at {effect.step}, {run.start.replica} is at {run.answered_step}",
                    )


def _hangs(facts: Facts, line: Record) -> Found:
    """Check that the replica blamed for a hang is the least advanced of those whose progress has stalled (R15)."""
    found = re.search(r"(\S+)/(\d+) failed on \S+: it hangs: no progress", line.reason)
    if found is None:
        return
    suspect = ReplicaId(found[1], int(found[2]))
    runs = {run.start.replica: run for run in facts.members(facts.world_of(suspect)) if not run.is_stopping}
    stalled = [run for run in runs.values() if run.stalled == "progress"]
    if suspect in runs and stalled and runs[suspect].step > min(run.step for run in stalled):
        yield "R15", f"{suspect} is blamed for a hang at step {runs[suspect].step}, and others are behind it"


def _checkpoints(facts: Facts, line: Record) -> Found:
    """Check that only the present generation publishes checkpoints (R19)."""
    for answer in line.effects:
        if isinstance(answer, AnswerCheckpoint) and answer.accepted and isinstance(line.event, ev.CheckpointOffered):
            run = facts.current(answer.replica, answer.attempt)
            if run is None or run.start.generation != line.event.generation:
                yield "R19", f"a checkpoint of {answer.replica} from generation {line.event.generation} is accepted"


def _services(was_running: dict[ReplicaId, Run], facts: Facts, line: Record) -> Found:
    """Check that a service that ends without a stop counts as failed, whatever its exit code (R16)."""
    event = line.event
    if not isinstance(event, ev.ReplicaExited) or facts.is_ending or facts.specs[event.replica.role].kind == "task":
        return
    run = was_running.get(event.replica)
    if run is None or run.start.attempt != event.attempt or run.is_stopping:
        return
    if str(event.replica) not in line.reason:
        yield "R16", f"{event.replica} is a service, it has ended, and nothing follows"


def _refusals(facts: Facts, line: Record) -> Found:
    """Check that a node is not drained if the minimum of a role has no room without it (R14)."""
    if not isinstance(line.event, ev.DrainRequested) or facts.is_ending:
        return
    rest = [node for name, node in facts.nodes.items() if name != line.event.node]
    room = sum(round(node.cpu * 1000) for node in rest)
    running = [spec for spec in facts.graph.roles if _count(facts.runs, spec.name) and not _may_be_ignored(spec)]
    wanted = 0
    for spec in running:
        wanted += round(spec.resources.cpu * 1000) * max(0, spec.min_replicas - _count(facts.done, spec.name))
    is_refused = any(isinstance(effect, Notify) and "is refused" in effect.text for effect in line.effects)
    if wanted > room and not is_refused and line.event.node in facts.nodes and line.effects:
        yield "R14", f"{line.event.node} is drained, and without it there is no room"


def _may_be_ignored(spec: RoleSpec) -> bool:
    """Return whether the policy may ignore failures: the minimum is then lower, and the record does not show it."""
    policy = spec.restart
    return policy is not None and (policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules))


def _all_gone_first(header: Header, records: list[Record]) -> Found:
    """Check that all replicas that are stopped together are gone before one of them starts again (R6).

    Only replicas that do start again count: nothing waits for a retired one. A scaling by the operator is no such set.
    """
    facts = Facts(header)
    again = {(e.replica, e.attempt) for line in records for e in line.effects if isinstance(e, StartReplica)}
    sets: list[dict[ReplicaId, int]] = []  # stopped together and not all gone: the attempt of each replica
    for line in records:
        facts.hear(line)
        if not isinstance(line.event, ev.NodeJoined):
            yield from _starts_too_early(facts, line, sets)
        facts.follow(line)
        if facts.is_ending:
            return
        if not isinstance(line.event, ev.ScaleRequested | ev.NodeJoined):
            sets += _sets_of(line, again)
        sets = [together for together in sets if _still_there(facts, together)]


def _starts_too_early(facts: Facts, line: Record, sets: list[dict[ReplicaId, int]]) -> Found:
    for start in (effect for effect in line.effects if isinstance(effect, StartReplica)):
        for together in sets:
            slow = _still_there(facts, together)
            if start.replica in together and slow:
                yield "R6", f"{start.replica} starts again while {slow[0]} stops (line {line.n})"


def _still_there(facts: Facts, together: dict[ReplicaId, int]) -> list[ReplicaId]:
    return [name for name, attempt in together.items() if facts.current(name, attempt) is not None]


def _sets_of(line: Record, again: set[tuple[ReplicaId, int]]) -> list[dict[ReplicaId, int]]:
    sets = [
        {stop.replica: stop.attempt for stop in stops if (stop.replica, stop.attempt + 1) in again}
        for stops in _stopped_together(line)
    ]
    return [together for together in sets if len(together) > 1]
