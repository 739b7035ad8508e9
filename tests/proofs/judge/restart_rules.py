"""Restart rules checked on a record: an independent judge of the events and effects of a job.

The judge shares no code with the controller and never reads its state. It does not judge what the record does not show.
Each check is named after its rule in docs/restarts.md, and yields the number of a broken rule and what breaks it;
nothing for a correct line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from flowdist.control.protocol import effects as fx
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec
from flowdist.record.journal import Header, Line, Record
from flowdist.sim.engine.queue import broken_by
from tests.proofs.judge.facts import Facts, Run
from tests.proofs.judge.phrases import GROWS, HANGS, IGNORED, INCIDENT, JOB_FAILS, LAGS, LEADS, READY, REFUSED
from tests.proofs.judge.start_rules import Found, count, in_place, opens, starts


class Complaint(NamedTuple):
    """Broken rule that a record or an exception shows.

    `rule` is its number in docs/restarts.md, such as `R6`, or `GPU`, `invariant` or `crash`. `text` says which replicas
    or nodes break it, and when.
    """

    rule: str
    text: str


def crash(error: Exception) -> Complaint:
    """Return the complaint about an exception of the controller: a broken invariant, or else a crash with its place."""
    return Complaint(*broken_by(error))


def complaints(lines: Iterable[Line]) -> list[Complaint]:
    """Judge a record by the restart rules, and return every broken rule in the order of the record.

    Args:
        lines: The lines of the record, with the header first. Lines that are no events are ignored.

    Raises:
        AssertionError: if the first line is no header.
    """
    lines = iter(lines)
    header = next(lines)
    assert isinstance(header, Header), "a record begins with its header"
    facts = Facts(header)
    records = [line for line in lines if isinstance(line, Record)]
    found: list[Complaint] = []
    for line in records:
        at = f"(at {line.t_ns / 1e9:g}s, line {line.n})"
        found += [Complaint(rule, f"{text} {at}") for rule, text in _judge(facts, line)]
    return found + [Complaint(rule, text) for rule, text in _all_gone_first(header, records)]


def _judge(facts: Facts, line: Record) -> Found:
    """Apply all checks to one line, and update the facts by its event and, at the end, by its effects."""
    was_running = dict(facts.runs)
    yield from _late_to_finish(facts, line)
    yield from _epochs(facts, line)
    facts.hear(line)
    yield from opens(facts, line)
    yield from starts(facts, line)
    yield from in_place(facts, line)
    yield from _stops_in_order(facts, line)
    yield from _growth(facts, line)
    yield from _steps(facts, line)
    yield from _hangs(facts, line)
    yield from _timeouts(facts, line)
    yield from _checkpoints(facts, line)
    yield from _services(was_running, facts, line)
    yield from _too_early(was_running, facts, line)
    yield from _refusals(facts, line)
    yield from _versions(facts, line)
    facts.follow(line)
    if any(isinstance(effect, fx.FinishJob) for effect in line.effects):
        yield from (("R18", f"the job is over while {replica} runs") for replica in [*facts.runs, *facts.suspended])


def _epochs(facts: Facts, line: Record) -> Found:
    """Check that each controller that takes over has a higher epoch than the one before it (R21)."""
    if isinstance(line.event, ev.ControllerStarted) and not facts.is_over:
        if line.event.epoch <= facts.epoch:
            yield "R21", f"a controller of epoch {line.event.epoch} follows one of epoch {facts.epoch}"
        facts.epoch = line.event.epoch


def _versions(facts: Facts, line: Record) -> Found:
    """Check that a replica of a role with `versions=` gets ready only with a published version, fresh enough (R23)."""
    named = [READY.match(effect.text) for effect in line.effects if isinstance(effect, fx.Decided)]
    names = {ReplicaId(found[1], int(found[2])) for found in named if found is not None}
    for replica in sorted(names):
        run = facts.runs.get(replica)
        if facts.specs[replica.role].versions is not None and (run is None or not facts.may_be_ready(run)):
            has = run.version if run is not None else -1
            yield "R23", f"{replica} is ready with version {has}, which is not fresh or was never published"


def _stops_in_order(facts: Facts, line: Record) -> Found:
    """Check that dependents are stopped before the roles that they depend on (R6).

    The order holds within one incident. Some lines are not checked: replicas whose failure is ignored, and those on the
    node of an unkillable worker, end by themselves; and orders that are repeated to a node that connects again have no
    order.
    """
    if isinstance(line.event, ev.ReplicaUnkillable | ev.NodeJoined) or IGNORED in line.reason:
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


def _stopped_together(line: Record) -> list[list[fx.StopReplica]]:
    """Return the stop orders of a line in one group for each incident.

    The message about an incident follows its stops in the line: it ends the group.
    """
    groups: list[list[fx.StopReplica]] = [[]]
    for effect in line.effects:
        if isinstance(effect, fx.StopReplica):
            groups[-1].append(effect)
        if isinstance(effect, fx.Decided) and effect.text.startswith(INCIDENT):
            groups.append([])
    return groups


def _depends(facts: Facts, role: str, upstream: str) -> bool:
    """Return whether the role depends on the role `upstream` by its gates, directly or through other roles."""
    gates = facts.specs[role].gates
    return any(gate.role == upstream or _depends(facts, gate.role, upstream) for gate in gates)


def _growth(facts: Facts, line: Record) -> Found:
    """Check that a world grows only after its cool-down, and while no member has finished (R13, R17).

    After a scaling by the operator the cool-down does not apply.
    """
    grows = GROWS.search(line.reason)
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
    """Check that no failure fails the job while a member of its world runs on a node that may be lost (R8).

    The loss may be the cause of the failure. For an exit or a signal every other node may be lost; for other kinds of
    failure, every suspected node. A failure that nobody else causes, and for which a rule fails the job, does so
    whatever is lost (R9).
    """
    event = line.event
    if not isinstance(event, ev.ReplicaExited) or event.replica not in was_running:
        return
    failed = was_running[event.replica].start
    verdict = f"{JOB_FAILS}{event.replica} failed on"
    if not any(isinstance(effect, fx.Decided) and effect.text.startswith(verdict) for effect in line.effects):
        return
    if event.kind in ("oom", "start_failed") and _fails_by_rule(facts, event):
        return
    doubtful = facts.nodes.keys() - {failed.node}
    if event.kind not in (None, "exit", "signal"):
        doubtful &= facts.suspected.keys()
    for run in facts.members(failed.world):
        if run.start.node in doubtful:
            yield "R8", f"the job fails by {event.replica}, and {run.start.node}, with {run.start.replica}, may be lost"


def _fails_by_rule(facts: Facts, event: ev.ReplicaExited) -> bool:
    """Return whether the first rule that matches the end of a worker fails the job."""
    policy = facts.graph.role(event.replica.role).restart
    for rule in policy.rules if policy is not None else ():
        wanted = (rule.kind, event.kind), (rule.exit, event.exit_code), (rule.signal, event.signal)
        if all(asked in (None, found) for asked, found in wanted):
            return rule.do == "fail"
    return False


def _late_to_finish(facts: Facts, line: Record) -> Found:
    """Check that members that still run `finish_timeout` after the first has finished are stopped (R17).

    Only a second line after the deadline proves that nothing stops them: the deadline may be handled in the first.
    """
    for world, done in facts.world_done.items():
        late = [run for run in facts.members(world) if not run.is_stopping]
        if done and late and not facts.is_ending:
            due = min(done.values()) + max(spec.finish_timeout_ns for spec in facts.roles_in(world))
            if line.t_ns >= facts.last_ns > max(due, facts.grace_until_ns):
                yield "R17", f"{late[0].start.replica} has not finished in time, and nothing follows"


def _steps(facts: Facts, line: Record) -> Found:
    """Check that a world is ordered to stop at a step after every step that its members have answered (R14)."""
    for effect in line.effects:
        if isinstance(effect, fx.AskStep):
            run = facts.current(effect.replica, effect.attempt)
            if run is not None and not isinstance(line.event, ev.NodeJoined):
                run.has_answered, run.answered_step = False, None
        if isinstance(effect, fx.StopAtStep) and effect.step is not None:
            for run in facts.members(facts.world_of(effect.replica)):
                if run.has_answered and (run.answered_step is None or run.answered_step >= effect.step):
                    found = f"{run.start.replica} is at {run.answered_step}"
                    yield "R14", f"{effect.replica} is to stop at {effect.step}, {found}"


def _hangs(facts: Facts, line: Record) -> Found:
    """Check that a replica that fails for a hang is not ahead, in steps, of another stalled member (R15)."""
    found = HANGS.search(line.reason)
    if found is None:
        return
    suspect = ReplicaId(found[1], int(found[2]))
    runs = {run.start.replica: run for run in facts.members(facts.world_of(suspect)) if not run.is_stopping}
    stalled = [run for run in runs.values() if run.stalled == "progress"]
    if suspect in runs and stalled and runs[suspect].step > min(run.step for run in stalled):
        yield "R15", f"{suspect} is blamed for a hang at step {runs[suspect].step}, and others are behind it"


def _timeouts(facts: Facts, line: Record) -> Found:
    """Check that no member is behind, in steps, the one that is blamed when a collective has timed out (R15).

    Members without a step, and those that have succeeded, do not count.
    """
    for name, index in [*LAGS.findall(line.reason), *LEADS.findall(line.reason)]:
        blamed = ReplicaId(name, int(index))
        world = facts.world_of(blamed)
        steps, done = facts.steps[world], facts.world_done[world]
        known = [step for replica, step in steps.items() if step >= 0 and replica not in done]
        if known and steps[blamed] > min(known):
            yield "R15", f"{blamed} is blamed for a timeout at step {steps[blamed]}, and others are behind it"


def _checkpoints(facts: Facts, line: Record) -> Found:
    """Check that only a checkpoint of the replica's present generation is accepted (R19)."""
    for answer in line.effects:
        if isinstance(answer, fx.AnswerCheckpoint) and answer.accepted and isinstance(line.event, ev.CheckpointOffered):
            run = facts.current(answer.replica, answer.attempt)
            if run is None or run.start.generation != line.event.generation:
                yield "R19", f"a checkpoint of {answer.replica} from generation {line.event.generation} is accepted"


def _services(was_running: dict[ReplicaId, Run], facts: Facts, line: Record) -> Found:
    """Check that a service that ends without an order counts as failed, whatever its exit code (R16).

    The check looks for the replica's name in the messages of the line.
    """
    event = line.event
    if not isinstance(event, ev.ReplicaExited) or facts.is_ending or facts.specs[event.replica.role].kind == "task":
        return
    run = was_running.get(event.replica)
    if run is None or run.start.attempt != event.attempt or run.is_stopping:
        return
    if not re.search(rf"(?<![\w-]){event.replica}(?!\d)", line.reason):  # a/1 stands neither in a/10 nor in data/1
        yield "R16", f"{event.replica} is a service, it has ended, and nothing follows"


def _refusals(facts: Facts, line: Record) -> Found:
    """Check that a drain is refused if the remaining nodes have no room for the minima of the running roles (R14).

    Roles whose policy may ignore failures do not count.
    """
    if not isinstance(line.event, ev.DrainRequested) or facts.is_ending:
        return
    rest = [node for name, node in facts.nodes.items() if name != line.event.node]
    room = sum(round(node.cpu * 1000) for node in rest)
    running = [spec for spec in facts.graph.roles if count(facts.runs, spec.name) and not _may_be_ignored(spec)]
    least = {spec.name: max(0, spec.min_replicas - count(facts.done, spec.name)) for spec in running}
    wanted = sum(round(spec.resources.cpu * 1000) * least[spec.name] for spec in running)
    is_refused = any(isinstance(effect, fx.Decided) and REFUSED in effect.text for effect in line.effects)
    if wanted > room and not is_refused and line.event.node in facts.nodes and line.effects:
        yield "R14", f"{line.event.node} is drained, and without it there is no room"


def _may_be_ignored(spec: RoleSpec) -> bool:
    """Return whether the role's policy may ignore failures: its minimum may then be lower than the record shows."""
    policy = spec.restart
    return policy is not None and (policy.then == "ignore" or any(rule.do == "ignore" for rule in policy.rules))


def _all_gone_first(header: Header, records: list[Record]) -> Found:
    """Check that all replicas that an incident stops are gone before one of them starts again (R6).

    Only replicas that start again later count: no start waits for a retired one. Stops by a scaling of the operator do
    not count.
    """
    facts = Facts(header)
    again = {(e.replica, e.attempt) for line in records for e in line.effects if isinstance(e, fx.StartReplica)}
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
    """Check that no replica starts again while another one that was stopped together with it still runs (R6).

    `sets` are groups of replicas that were stopped together, each replica with its attempt.
    """
    for start in (effect for effect in line.effects if isinstance(effect, fx.StartReplica)):
        for together in sets:
            slow = _still_there(facts, together)
            if start.replica in together and slow:
                yield "R6", f"{start.replica} starts again while {slow[0]} stops (line {line.n})"


def _still_there(facts: Facts, together: dict[ReplicaId, int]) -> list[ReplicaId]:
    """Return those replicas of a group whose attempt, which was ordered to stop, still runs."""
    return [name for name, attempt in together.items() if facts.current(name, attempt) is not None]


def _sets_of(line: Record, again: set[tuple[ReplicaId, int]]) -> list[dict[ReplicaId, int]]:
    """Return the groups of two and more replicas that a line stops together, each replica with its attempt.

    `again` are the attempts that the record starts at some time. A replica without a next attempt among them is left
    out.
    """
    sets = [
        {stop.replica: stop.attempt for stop in stops if (stop.replica, stop.attempt + 1) in again}
        for stops in _stopped_together(line)
    ]
    return [together for together in sets if len(together) > 1]
