"""Safeguards of the control machines, and how each is switched off: by an edit of the source of one function.

An edit has to find its text exactly once and has to change the code, so that no mutant is ever the unmutated build.
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

Property = Literal["conversation", "run", "quiet", "restart", "network", "beating"]


class Mutant(NamedTuple):
    """One safeguard, off.

    Args:
        rule: Of the design, `R19`.
        about: What the mutant does wrong.
        where: `agent.lease:Lease.fence_at`, below flowdist.control; with a leading dot below flowdist.
        old: What stands there, exactly once.
        new: What it becomes.
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
    """An edit that does not find its place, or changes nothing."""


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """With that safeguard switched off, everywhere: the code of the function itself is exchanged.

    Raises:
        MutationError: If the text is not there exactly once, or the edit changes no code.
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
    """Whether they do the same, wherever their lines stand: functions within them are looked into."""
    if (one.co_code, one.co_names, len(one.co_consts)) != (other.co_code, other.co_names, len(other.co_consts)):
        return False
    pairs = zip(one.co_consts[1:], other.co_consts[1:], strict=True)
    return all(_is_same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else a == b for a, b in pairs)


M = Mutant
MUTANTS: tuple[Mutant, ...] = (
    M("gates-ignored", "R1", "a role starts before what it has a gate on",
      "membership.formation:closed_gates", "if not meets_condition(", "if False and not meets_condition("),
    M("no-admission", "R2", "the job starts without room for the minima of all its roles",
      "membership.formation:_admit_all", "if short is not None:", "if False:", "quiet"),
    M("no-join-window", "R2", "the job starts without waiting for the nodes that are expected",
      "membership.formation:_admit_all", "if job.missing:", "if False:"),
    M("greedy-growth", "R2", "growth takes the seats that the minima of later roles need",
      "placement.placement:fill", "(short and not leaves_room(job, role, left, seats, short))", "False", "quiet"),
    M("ranks-reversed", "R3", "ranks do not follow the order of replicas",
      "membership.formation:start_members",
      "for replica in members:", "for replica in reversed(members):"),
    M("rank-0-is-source", "R3", "state is taken from rank 0, which may have just come",
      "membership.formation:start_members", "source = min(members, key=lambda replica: replica.member_since)",
      "source = members[0]"),
    M("old-store", "R4", "the store of a former generation is taken for that of the present one",
      "controller:_store_opened", "world.generation == event.generation and ", ""),
    M("role-isolation", "R5", "dependents that only reconnect are restarted, too",
      "incidents.closure:followers", 'if gate.on_restart == "restart"', "if gate", "restart"),
    M("edge-dropped", "R5", "dependents that should restart do not",
      "incidents.closure:followers", 'if gate.on_restart == "restart"', "if not gate", "restart"),
    M("domain-dropped", "R5", "a domain does not restart together",
      "incidents.closure:followers", "list(domain.roles) if domain else []", "[]", "restart"),
    M("not-all-gone", "R6", "a restart set starts again while some of it still stops",
      "incidents.advancing:_advance_incident",
      "while incident.awaited and not job.worlds[next(iter(incident.awaited))].live:",
      "while incident.awaited:", "run"),
    M("stop-order", "R6", "dependents are told to stop last",
      "incidents.recovery:stop_set", "-job.roles[", "job.roles[", "restart"),
    M("gpus-of-unkillable", "R6", "the GPUs of a worker that outlives SIGKILL are given again",
      "membership.nodes:give_up_node", "node.stuck[replica.id, replica.attempt] = gpus",
      "node.stuck[replica.id, replica.attempt] = ()"),
    M("budget-window", "R7", "a budget never forgets",
      "incidents.judge:charges_in_window", "bisect_right(opened, since) if since is not None else 0", "0", "beating"),
    M("charge-per-replica", "R7", "an incident is charged once for each replica that failed in it",
      "incidents.recovery:charge", "role.charges.append(Charge(incident.opened_ns, incident.level))",
      "role.charges += [Charge(incident.opened_ns, incident.level)] * len(incident.lost)", "beating"),
    M("charged-twice", "R7", "an incident is charged twice",
      "incidents.recovery:charge", "role.charges.append(Charge(incident.opened_ns, incident.level))",
      "role.charges += [Charge(incident.opened_ns, incident.level)] * 2", "beating"),
    M("failure-inside", "R7", "a failure inside an incident opens one of its own",
      "incidents.judging:_conclude", "if part_of is not None and part_of.is_open:", "if False:", "beating"),
    M("node-loss-counts", "R8", "a lost node is charged to the role",
      "incidents.judge:judge_failure", "free = failure.kind in FREE_KINDS and rule is None", "free = False", "beating"),
    M("peers-pay", "R8", "who fails with a node that dies is judged before that is known",
      "incidents.suspects:suspects_of", "if failure.kind in PEER_KINDS:", "if False:"),
    M("no-free-limit", "R8", "membership changes in a row never end the job",
      "incidents.health:exceeds_row", "free_row > options.free_incidents_max", "False", "beating"),
    M("last-rule-wins", "R9", "of several rules that match the last decides",
      "incidents.judge:matching_rule", "for rule in policy.rules", "for rule in reversed(policy.rules)", "beating"),
    M("no-back-off", "R10", "a counted restart never waits",
      "incidents.backoff:set_backoff", "if wait > incident.backoff_ns:", "if False:", "beating"),
    M("back-off-stays", "R10", "a healthy time does not start the back-off anew",
      "incidents.backoff:next_backoff", "step = 0", "pass", "beating"),
    M("no-escalation", "R11", "a used-up budget fails the job, whatever comes after it",
      "incidents.judge:_within_budget", "if policy.wider is not None:", "if False:", "beating"),
    M("waits-for-ever", "R12", "a role below its minimum waits for ever",
      "membership.formation:_has_minimum",
      "job.due.set_once(pending, job.now + role.spec.pending_timeout_ns)", "pass", "run"),
    M("no-cool-down", "R13", "a world grows again at once",
      "membership.formation:_may_grow_from", "max(role.spec.cooldown_ns for role in roles)", "0"),
    M("step-too-low", "R14", "the step to stop at is one that somebody has passed",
      "membership.drain:_name_step", "max(told) + 1", "max(told)"),
    M("drain-not-refused", "R14", "a node is drained that a role cannot do without",
      "membership.drain:drain", "if needed := is_needed(job, event.node):", 'if needed := "":'),
    M("wrong-suspect", "R15", "the most advanced rank is held to hang",
      "incidents.hangs:judge_hang", "suspect = min(", "suspect = max("),
    M("service-succeeds", "R16", "a service that ends with 0 has succeeded",
      "membership.attempts:note_exited",
      'elif event.kind is None and role.spec.kind == "task":', "elif event.kind is None:"),
    M("exit-under-notice", "R16", "what ends under a notice has failed or succeeded",
      "agent.agent:Agent._finish", "attempt.is_noticed or (", "(", "network"),
    M("closing-world-grows", "R17", "a world grows when one of it has finished",
      "membership.formation:_grow", "busy or world.is_closing or not growing", "busy or not growing"),
    M("no-finish-timeout", "R17", "whoever does not finish after the others is waited for for ever",
      "membership.attempts:_note_success", 'if world.phase == "running":', "if False:"),
    M("over-too-soon", "R18", "the job is over while something of it runs",
      "incidents.ending:settle_ending", "if deepest is None:", "if True:"),
    M("no-fence", "R19", "an agent works on when its lease is over",
      "agent.lease:Lease.fence_at", "if self.acked_ns is None:", "if True:", "network"),
    M("lease-from-arrival", "R19", "the lease counts from the arrival of the answer, not from the question",
      "agent.agent:Agent._hear", "self.lease.acked(message.sent_ns)", "self.lease.acked(self._now)", "network"),
    M("replaced-too-soon", "R19", "a silent node is replaced before its lease is over",
      "connection.failure_detector:FailureDetector.__init__",
      "= silent_after_ns\n", "= silent_after_ns // 2\n", "network"),
    M("old-checkpoint", "R19", "a checkpoint of a former generation is published",
      "controller:_offered", " and event.generation == world.generation", ""),
    M("any-attempt", "R20", "news of a former attempt are taken for news",
      "controller:_current", " or found.attempt != attempt", ""),
    M("any-incarnation", "R20", "an agent that has fenced obeys what was meant for it before",
      "agent.agent:Agent._hear", " or message.incarnation != self.incarnation", "", "network"),
    M("any-epoch", "R20", "an agent obeys a controller that was replaced",
      "agent.agent:Agent._hear", "message.epoch < self.epoch or ", "", "network"),
    M("last-record-lost", "R21", "effects are carried out before their record is written",
      ".sim.engine.controller:SimController._replayed", "if isinstance(line, Record):",
      "if isinstance(line, Record) and line.n < self._n:", "run"),
    M("same-epoch", "R21", "a controller that took over speaks as the one before it did",
      "connection.sessions:Sessions.take_over", "self.epoch = job.epoch + 1", "self.epoch = job.epoch", "run"),
    M("no-cordon", "R22", "a node on which so much fails takes more",
      "placement.bad_nodes:blame", "cordon(job, replica.node, why)", "pass", "beating"),
    M("never-elsewhere", "R22", "a replica that fails again and again on a node stays there",
      "placement.bad_nodes:moves_away", "if name not in bad and not job.nodes[name].cordoned:", "if True:", "beating"),
    M("bad-gpu-again", "GPU", "a GPU that is bad is given again",
      "placement.placement:_given_back", "return without(add(left, role.need, devices), tuple(node.bad_gpus))",
      "return add(left, role.need, devices)"),
    M("keeps-bad-gpu", "GPU", "a replica whose GPU is bad keeps it when it starts again",
      "incidents.advancing:_loses_its_seat",
      "if any(gpu in node.bad_gpus for gpu in replica.gpus):", "if False:"),
    M("gpu-twice", "GPU", "a GPU is given to two replicas",
      "placement.placement:place", "replica.gpus = pick(role.need, node.free)",
      "replica.gpus = tuple(range(role.need.gpu))"),
)  # fmt: skip
