"""Mutants of controller and agent: each switches one safeguard off by an edit of the source of one function.

An edit has to find its text exactly once in the function, docstring included, and has to change the code. So no mutant
equals the unmutated build.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, Literal, NamedTuple

Property = Literal["conversation", "run", "quiet", "restart", "network", "repeated", "snapshots", "versions"]


class Mutant(NamedTuple):
    """Edit of one function that switches one safeguard off.

    Args:
        name: The name of the mutant, on the command line and in tables.
        rule: The rule of docs/restarts.md that the mutant breaks, such as `R19`.
        about: What the mutant does wrong.
        where: Module and function, `agent.lease:Lease.fence_at`: below flowdist.control, with a leading dot below
            flowdist.
        old: Text that the source of the function contains exactly once.
        new: Replacement of that text.
        first: The property that the bench tries first; all others follow.
    """

    name: str
    rule: str
    about: str
    where: str
    old: str
    new: str
    first: Property = "conversation"


class MutationError(Exception):
    """A mutant cannot be applied: its function or text is not found exactly once, or the edit changes no code."""


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Return a context manager that switches the mutant's safeguard off inside the `with` block.

    The code of the function itself is replaced, in this process, so that every caller runs the edited code. Afterwards
    the function is as before.

    Raises:
        MutationError: The function does not exist, the text is not there exactly once, or the edit changes no code.
    """
    function = _function(mutant.where)
    before = function.__code__
    function.__code__ = _edited(mutant, function)
    try:
        yield
    finally:
        function.__code__ = before


def _function(where: str) -> FunctionType:
    module, _, path = where.partition(":")
    found: Any = importlib.import_module(
        f"flowdist{module}" if module.startswith(".") else f"flowdist.control.{module}"
    )
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, FunctionType):
        raise MutationError(f"{where} is no function")
    return found


def _edited(mutant: Mutant, function: FunctionType) -> CodeType:
    """Return the code of the function after the mutant's edit of its source.

    Raises:
        MutationError: The text is not there exactly once, or the edit changes no code.
    """
    source = textwrap.dedent(inspect.getsource(function))
    if source.count(mutant.old) != 1:
        raise MutationError(f"{mutant.name}: {mutant.old!r} stands {source.count(mutant.old)} times in {mutant.where}")
    tree = ast.parse("from __future__ import annotations\n" + source.replace(mutant.old, mutant.new))
    namespace: dict[str, Any] = {}
    exec(compile(tree, inspect.getsourcefile(function) or "<mutant>", "exec"), function.__globals__, namespace)
    code: CodeType = namespace[function.__name__].__code__
    if _is_same(code, function.__code__):
        raise MutationError(f"{mutant.name}: the edit of {mutant.where} changes nothing")
    return code


def _is_same(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same, nested functions included; line numbers do not count."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (other.co_code, other.co_names, len(other.co_consts)):
        return False
    pairs = zip(one.co_consts[1:], other.co_consts[1:], strict=True)
    return all(_is_same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a == b for a, b in pairs)


M = Mutant
MUTANTS: tuple[Mutant, ...] = (
    M("gates-ignored", "R1", "a role starts before its gates are open",
      "membership.formation:closed_gates", "if not meets_condition(", "if False and not meets_condition("),
    M("no-admission", "R2", "the job starts without room for the minima of all its roles",
      "membership.formation:_admit_all", "if short is not None:", "if False:", "quiet"),
    M("no-join-window", "R2", "the job starts without waiting for nodes that are expected to join",
      "membership.formation:_admit_all", "if job.missing:", "if False:"),
    M("greedy-growth", "R2", "a role grows onto seats that the minimum of a later role needs",
      "placement.placement:fill", "(short and not _leaves_room(job, seats, short))", "False", "quiet"),
    M("ranks-reversed", "R3", "ranks follow the order of the replicas in reverse",
      "membership.formation:start_members",
      "for replica in members:", "for replica in reversed(members):"),
    M("rank-0-is-source", "R3", "rank 0 is the source of the state, although it may be a new member",
      "membership.formation:start_members", "source = min(members, key=lambda replica: replica.member_since)",
      "source = members[0]"),
    M("old-store", "R4", "the controller accepts the store of an earlier generation",
      "controller:_store_opened", "world.generation == event.generation and ", ""),
    M("role-isolation", "R5", 'a dependent with on_restart="reconnect" restarts',
      "incidents.restart_set:followers", 'if gate.on_restart == "restart"', "if gate", "restart"),
    M("edge-dropped", "R5", 'a dependent with on_restart="restart" does not restart',
      "incidents.restart_set:followers", 'if gate.on_restart == "restart"', "if not gate", "restart"),
    M("domain-dropped", "R5", "the roles of a domain do not restart together",
      "incidents.restart_set:followers", "list(domain.roles) if domain else []", "[]", "restart"),
    M("not-all-gone", "R6", "a restart set starts again before all of it has stopped",
      "incidents.advancing:_advance_incident",
      "while incident.awaited and not job.worlds[next(iter(incident.awaited))].live:",
      "while incident.awaited:", "run"),
    M("stop-order", "R6", "dependents are stopped last instead of first",
      "incidents.recovery:stop_set", "-job.roles[", "job.roles[", "restart"),
    M("gpus-of-unkillable", "R6", "the GPUs of an unkillable worker are assigned again",
      "membership.nodes:give_up_node", "node.stuck[replica.id, replica.attempt] = gpus",
      "node.stuck[replica.id, replica.attempt] = ()"),
    M("budget-window", "R7", "a charge counts against its budget for ever",
      "rules:charges_in_window", "bisect_right(opened, since) if since is not None else 0", "0", "repeated"),
    M("charge-per-replica", "R7", "an incident is charged once for each replica that failed in it",
      "incidents.recovery:charge", "role.charges.append(Charge(incident.opened_ns, incident.level))",
      "role.charges += [Charge(incident.opened_ns, incident.level)] * len(incident.lost)", "repeated"),
    M("charged-twice", "R7", "an incident is charged twice",
      "incidents.recovery:charge", "role.charges.append(Charge(incident.opened_ns, incident.level))",
      "role.charges += [Charge(incident.opened_ns, incident.level)] * 2", "repeated"),
    M("failure-inside", "R7", "a failure that belongs to an open incident opens another incident",
      "incidents.judging:_conclude",
      "if part_of is not None and part_of.is_open and not", "if False and not", "repeated"),
    M("node-loss-counts", "R8", "the loss of a node is charged to the role",
      "rules:judge_failure", "free = failure.kind in FREE_KINDS and rule is None", "free = False",
      "repeated"),
    M("peers-pay", "R8", "a failure is judged before the loss of a peer's node is known",
      "incidents.suspects:suspects_of", "if failure.kind in PEER_KINDS:", "if False:"),
    M("late-beat-clears", "R8", "a heartbeat from before a fence clears its node of suspicion when it arrives late",
      "connection.sessions:Sessions.hear", "now, message.answered_ns)", "now, now)", "network"),
    M("no-free-limit", "R8", "membership changes in a row never fail the job",
      "rules:exceeds_row", "free_row > options.free_incidents_max", "False", "repeated"),
    M("last-rule-wins", "R9", "the last matching rule decides instead of the first",
      "rules:matching_rule", "for rule in policy.rules", "for rule in reversed(policy.rules)", "repeated"),
    M("no-back-off", "R10", "a charged restart never waits",
      "incidents.applied_rules:set_backoff", "if wait:", "if False:", "repeated"),
    M("back-off-stays", "R10", "a healthy period does not reset the back-off",
      "rules:next_backoff", "step = 0", "pass", "repeated"),
    M("no-escalation", "R11", "a used-up budget fails the job although a wider policy follows",
      "rules:_within_budget", "if policy.wider is not None:", "if False:", "repeated"),
    M("waits-for-ever", "R12", "a role below its minimum waits for ever",
      "membership.formation:_has_minimum",
      "job.due.set_once(pending, job.now + role.spec.pending_timeout_ns)", "pass", "run"),
    M("no-cool-down", "R13", "a world grows without a cool-down",
      "membership.formation:_may_grow_from", "max(role.spec.cooldown_ns for role in roles)", "0"),
    M("step-too-low", "R14", "the agreed step of a drain is one that a worker has passed",
      "membership.drain:agreed_step", "max(told) + 1", "max(told)"),
    M("drain-not-refused", "R14", "a drain is accepted although it leaves a role below its minimum",
      "membership.drain:drain", "if needed := is_needed(job, event.node):", 'if needed := "":'),
    M("wrong-suspect", "R15", "the most advanced rank is judged to hang, not the least advanced",
      "incidents.hangs:judge_hang", "first = min(", "first = max("),
    M("peer-blamed", "R15", "the rank whose collective times out is blamed, not one that is behind it",
      "incidents.hangs:name_culprit", "culprit = min(", "culprit = max("),
    M("service-succeeds", "R16", "a service that ends with exit code 0 counts as succeeded",
      "membership.attempts:note_exited",
      'event.kind is None and role.spec.kind == "task"', "event.kind is None"),
    M("exit-at-agreed-step", "R16", "an attempt that ends at the agreed step counts as failed or succeeded",
      "agent.agent:Agent._finish", "or has_obeyed or", "or", "network"),
    M("closing-world-grows", "R17", "a closing world grows",
      "membership.formation:_grow", "busy or world.is_closing or not growing", "busy or not growing"),
    M("no-finish-timeout", "R17", "a closing world waits for ever for its other members",
      "membership.attempts:note_exited", 'if world.phase == "running" and', "if False and"),
    M("over-too-soon", "R18", "the job ends while a replica runs",
      "incidents.ending:settle_ending", "if deepest is None:", "if True:"),
    M("no-fence", "R19", "an agent does not fence when its lease runs out",
      "agent.lease:Lease.fence_at", "if self.acked_ns is None:", "if True:", "network"),
    M("lease-from-arrival", "R19", "a lease counts from the answer's arrival, not from the heartbeat's sending",
      "agent.agent:Agent._hear", "self.lease.acked(message.sent_ns,", "self.lease.acked(self._now,", "network"),
    M("replaced-too-soon", "R19", "a silent node is replaced before its lease has run out",
      "connection.failure_detector:FailureDetector.__init__",
      "= silent_after_ns\n", "= silent_after_ns // 2\n", "network"),
    M("old-checkpoint", "R19", "the controller accepts a checkpoint of an earlier generation",
      "controller:_offered", " and event.generation == world.generation", ""),
    M("any-attempt", "R20", "the controller accepts reports of an earlier attempt",
      "recording:_current", " or found.attempt != attempt", ""),
    M("any-incarnation", "R20", "an agent carries out orders for an earlier incarnation",
      "agent.agent:Agent._hear", " or message.incarnation != self.incarnation", "", "network"),
    M("any-epoch", "R20", "an agent carries out orders of an earlier epoch",
      "agent.agent:Agent._hear", "message.epoch < self.epoch or ", "", "network"),
    M("last-record-lost", "R21", "the controller carries out effects before it writes their record",
      ".sim.engine.controller:SimController._replayed", "if isinstance(line, Record):",
      "if isinstance(line, Record) and line.n < self._n:", "run"),
    M("same-epoch", "R21", "a controller that takes over keeps the epoch of its predecessor",
      "connection.sessions:Sessions.take_over", "self.epoch = job.epoch + 1", "self.epoch = job.epoch", "run"),
    M("no-cordon", "R22", "a node with many failures of one kind is not cordoned",
      "placement.bad_nodes:blame", "cordon(job, replica.node, why)", "pass", "repeated"),
    M("never-elsewhere", "R22", "a replica that fails repeatedly on a node keeps its seat there",
      "rules:no_better", "if node not in failed_on and not is_closed:", "if True:", "repeated"),
    M("old-weights", "R23", "a replica that comes back is ready with the version of its last attempt",
      "incidents.restart_set:note_start", "replica.version = -1", "pass", "versions"),
    M("unpublished", "R23", "a replica is ready with a version that was never published",
      "membership.versions:why_not_fresh", "if replica.version > publisher.highest_version:", "if False:", "versions"),
    M("other-publisher", "R23", "a version of another role makes a replica ready",
      "membership.versions:why_not_fresh", "publisher = job.roles[edge.role]",
      "publisher = max(job.roles.values(), key=lambda role: role.highest_version)", "versions"),
    M("other-holder", "R23", "a version that another replica has acknowledged makes a replica ready",
      "membership.versions:note_acknowledged", "replica.version = event.version",
      "job.replicas_of(job.role_of(replica.id))[0].version = replica.version = event.version", "versions"),
    M("any-version", "R23", "a replica is ready with a version that is too old",
      "membership.versions:is_stale", "return behind and", "return False and", "versions"),
    M("late-generation", "R24", "a copy counts whose generation is over",
      "snapshots.copies:_counts", "if first is None or not first.generation == world.generation == event.generation:",
      "if first is None:", "snapshots"),
    M("late-attempt", "R24", "a copy counts of an attempt that is over",
      "snapshots.copies:_counts", "return job.replicas[world.members[place]].is_live", "return True", "snapshots"),
    M("lost-holder", "R24", "copies on a lost node still count",
      "snapshots.copies:lose_copies", "_held(world, name))", "[])", "snapshots"),
    M("lost-memory", "R24", "copies that an agent does not list when it connects again still count",
      "snapshots.copies:note_vault", "if (world.name, *each) not in listed", "if False", "snapshots"),
    M("broken-copy", "R24", "a copy with a wrong checksum still counts",
      "snapshots.copies:lose_copy", "if each == (event.generation, event.step, event.rank)", "if False", "snapshots"),
    M("mixed-shards", "R24", "shards of two generations with one step make one snapshot",
      "snapshots.copies:hold", "world.snapshots.get((event.generation, event.step))",
      "next((each for each in world.snapshots.values() if each.step == event.step), None)", "snapshots"),
    M("differing-copies", "R24", "a copy counts that differs from the others of its shard",
      "snapshots.copies:hold", "if digests and event.digest not in digests.values():", "if False:", "snapshots"),
    M("torn-snapshot", "R24", "a generation goes on from a snapshot that is not whole",
      "snapshots.keeping:newest_snapshot", "if each.least", "if each.copies", "snapshots"),
    M("oldest-snapshot", "R24", "a generation goes on from an older snapshot than the newest whole one",
      "snapshots.keeping:newest_snapshot", "return max(", "return min(", "snapshots"),
    M("memory-before-disk", "R24", "a generation goes on from memory although a checkpoint is further",
      "snapshots.keeping:candidate", "world.checkpoint.step > newest.step", "False", "snapshots"),
    M("each-its-own-state", "R24", "the members of a generation go on from different states",
      "membership.formation:start_members", "snapshot=snapshot,", "snapshot=snapshot if i else None,", "snapshots"),
    M("reads-what-is-lost", "R24", "a generation goes on reading a snapshot that has lost a shard",
      "snapshots.keeping:keep_snapshots", "_read_another(job, world)", "pass", "snapshots"),
    M("late-copies-lost", "R24", "a further copy of an acknowledged shard does not count when its generation is over",
      "snapshots.copies:hold", "if not digests and not _counts(", "if not _counts(", "snapshots"),
    M("given-up-early", "R24", "snapshots are given up after one generation that has failed before its first step",
      "snapshots.choosing:_note_unread", "world.unread >= UNREAD_MAX", "world.unread >= 1", "snapshots"),
    M("never-given-up", "R24", "a snapshot that nobody can read is read until the budget is used up",
      "snapshots.choosing:_note_unread", "give_up(job, world)", "pass", "snapshots"),
    M("given-up-for-nothing", "R24", "snapshots are given up where no checkpoint is",
      "snapshots.choosing:_note_unread", "world.checkpoint is not None and (", "(", "snapshots"),
    M("release-last", "R24", "the last whole snapshot is released",
      "snapshots.keeping:kept_snapshots", "{*full, *whole, ", "{*full, ", "snapshots"),
    M("release-full", "R24", "the last snapshot with all of its copies is released for one with fewer",
      "snapshots.keeping:kept_snapshots", "{*full, *whole, ", "{*whole, ", "snapshots"),
    M("own-buddy", "R24", "a node is its own buddy",
      "snapshots.buddies:buddies", "(*group[i + 1 :], *group[:i])", "tuple(group[1:])", "snapshots"),
    M("bad-gpu-again", "GPU", "a GPU that failed is assigned again",
      "placement.placement:_given_back", "return without(add(left, role.need, devices), tuple(node.bad_gpus))",
      "return add(left, role.need, devices)"),
    M("keeps-bad-gpu", "GPU", "a replica that starts again keeps a GPU that failed",
      "incidents.advancing:_loses_its_seat",
      "if any(gpu in node.bad_gpus for gpu in replica.gpus):", "if False:"),
    M("gpu-twice", "GPU", "a GPU is assigned to two replicas",
      "placement.placement:place", "replica.gpus = pick(role.need, node.free)",
      "replica.gpus = tuple(range(role.need.gpu))"),
)  # fmt: skip
