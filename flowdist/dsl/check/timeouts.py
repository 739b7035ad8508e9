"""Timeouts that cannot work: the order in time of lease, grace, checkpoints, hangs, start-up, back-off and budgets.

`RULES` is a table of pure functions over the compiled graph. Each knows one order that has to hold, and returns what
goes wrong if it does not: a sentence with both values, and what to write instead. The tests prove each rule by scenes
that the simulator plays. FD1xx is a value that can never work. FD3xx goes wrong only in the case that the sentence
names.

What a workload says about start-up, steps and checkpoints is the user's own number. Rules about it (`OF_WORKLOAD`) do
not judge a role without a workload, whose defaults are a guess: workers of a real run may start faster, and save in
another time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from flowdist.dsl.problems.places import COMMAND_LINE
from flowdist.dsl.problems.problem import Problem, Problems, Related, Severity
from flowdist.dsl.read.fields import Arguments
from flowdist.dsl.topology import Topology
from flowdist.graph import MINUTE, MS, SECOND, JobOptions, RestartPolicy, RoleGraph, RoleSpec
from flowdist.graph import format_duration as _text
from flowdist.graph.role_graph import WorkloadSpec

TAKE_OVER_NS = 300 * MS  # from the death of a controller until the next one answers, as simulated
ANSWER_NS = 1 * MS  # from a heartbeat to its answer, as simulated
FIRST_WAITS = RestartPolicy()  # the default back-off


class Finding(NamedTuple):
    """An order in time that does not hold, of one role or (`role` empty) of the topology."""

    code: str
    role: str
    name: str  # argument at which the problem is reported; dots lead into `workload` and `restart`
    others: tuple[tuple[str, int], ...]  # the arguments that it does not go with, each with its value in ns
    message: str  # what goes wrong, with both values
    help: str
    advised: tuple[str, int]  # the argument in `help`, and its value there, in ns


def _write_more(
    code: str, role: str, name: str, others: tuple[tuple[str, int], ...], message: str, ns: int, tail: str = ""
) -> Finding:
    """Return the finding whose help is to give the argument `name` a value of `ns` or more; `tail` ends the help."""
    help = f'write {name.rpartition(".")[2]}="{_text(ns)}" or more{tail}'
    return Finding(code, role, name, others, message, help, (name, ns))


def check_timeouts(topology: Topology, graph: RoleGraph, problems: Problems) -> None:
    """Add every finding of the rules to `problems`; the compiler calls it when all arguments have been read.

    Findings about an argument that has an error already are left out: its value is not the user's.
    """
    arguments = Arguments(topology)
    for found in find(graph):
        names = [found.name, *(name for name, _ in found.others)]
        owner = arguments.owner(found.role)
        if not any(problems.is_wrong(each, *names) for each in (owner, arguments.owner(""))):
            problems.report(problem_of(found, arguments)._replace(message=found.message), owner=owner)


def problem_of(found: Finding, arguments: Arguments) -> Problem:
    """Return the problem that reports a finding, at its argument, or at the first other one if `--set` gave that."""
    places = [arguments.place(found.role, name) for name in (found.name, *(name for name, _ in found.others[:1]))]
    place = places[-1] if places[-1].file == COMMAND_LINE else places[0]
    related = tuple(related_to(arguments, found.role, name, ns) for name, ns in found.others)
    severity: Severity = "warning" if found.code.startswith("FD3") else "error"
    message = f"{arguments.owner(found.role)}: {found.message}"
    return Problem(found.code, message, found.help, place, severity, related)


def related_to(arguments: Arguments, role: str, name: str, ns: int) -> Related:
    """Return the note about another argument of a finding: its value `ns`, and its place if the user has written it."""
    text = f"{name.rpartition('.')[2]}={_text(ns)}"
    if arguments.is_written(role, name):
        return Related(text, arguments.place(role, name))
    return Related(f"{text} is the default", None)


def find(graph: RoleGraph) -> Iterator[Finding]:
    """Yield the findings of all rules about the options of the job, and then about each role, in the order of both."""
    for rule in JOB_RULES:
        if graph.roles and (found := rule(graph)) is not None:
            yield found
    for spec in graph.roles:
        rules = [rule for rule in RULES if not is_guess(spec) or rule not in OF_WORKLOAD]
        yield from (found for rule in rules if (found := rule(graph, spec)) is not None)


# Rules about the options of the job.


def lease_without_heartbeat(graph: RoleGraph) -> Finding | None:
    """FD156: an agent fences a margin before its lease ends, and no heartbeat is answered before that."""
    options = graph.options
    beat, lease, margin = options.heartbeat_ns, options.lease_ns, options.lease_margin_ns
    if lease - margin > beat:
        return None
    message = (
        f"lease={_text(lease)} and heartbeat={_text(beat)}: a node stops its workers {_text(margin)} before its lease "
        "is over, and no heartbeat would renew it before that"
    )
    least = margin + 4 * beat
    help = f'write lease="{_text(least)}" or more'
    if (most := (lease - margin) // 2 - ANSWER_NS) >= MS:
        help += f', or heartbeat="{_text(less(most))}" or less'
    of_beat = lease == JobOptions().lease_ns
    name, other, ns = ("heartbeat", "lease", lease) if of_beat else ("lease", "heartbeat", beat)
    return Finding("FD156", "", name, ((other, ns),), message, help, ("lease", least))


def one_heartbeat_late(graph: RoleGraph) -> Finding | None:
    """FD333: the lease ends before a heartbeat is answered that arrives when the next one is due."""
    options = graph.options
    beat, lease, margin = options.heartbeat_ns, options.lease_ns, options.lease_margin_ns
    if lease - margin > 2 * beat + ANSWER_NS or lease - margin <= beat:
        return None
    message = (
        f"lease={_text(lease)} has room for a single heartbeat: an agent stops its workers {_text(margin)} before its "
        f"lease is over, so one heartbeat that is late by {_text(beat)} ends all workers of its node"
    )
    tail = ", so that three heartbeats may be late"
    return _write_more("FD333", "", "lease", (("heartbeat", beat),), message, margin + 4 * beat, tail)


def outage_too_short(graph: RoleGraph) -> Finding | None:
    """FD334: agents end their workers before a controller that was killed can be started again."""
    options = graph.options
    outage, margin = options.controller_outage_ns, options.lease_margin_ns
    if outage > margin + TAKE_OVER_NS:
        return None
    message = (
        f"controller_outage={_text(outage)} ends the workers of all nodes whenever the controller is started again: "
        f"they are stopped {_text(margin)} before the end of that time, and a new controller needs about "
        f"{_text(TAKE_OVER_NS)}"
    )
    return Finding("FD334", "", "controller_outage", (), message, 'write "1m" or more', ("controller_outage", MINUTE))


# Rules about one role.


def hang_found_too_late(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD327: the process group of the peers of a rank that hangs gives up before the hang is judged (R15)."""
    ends, window = spec.workload.group_timeout_ns, graph.options.cause_window_ns
    has_peers = spec.max_replicas > 1 or graph.world_of(spec.name) is not None
    hang = spec.hang_after_ns
    if hang is None or ends is None or spec.kind != "task" or not (spec.gang and has_peers) or hang + window < ends:
        return None
    judged = f"hang_after={_text(hang)}" + (f" and cause_window={_text(window)} later" if hang < ends else "")
    message = (
        f"a rank that hangs is found only after its peers have died: their collective timeout ends them after "
        f"{_text(ends)}, and the hang is judged after {judged}"
    )
    most, least = less((ends - window) * 3 // 4), more(2 * hang + window)
    help, advised = f'write hang_after="{_text(most)}" or less', ("hang_after", most)
    if most <= 2 * _longest_gap_ns(spec):  # there is no room below: a healthy step takes as long
        advised = ("workload.collective_timeout", least)
        help = f'give the process groups a timeout of "{_text(least)}" or more, and write it as collective_timeout='
    others: tuple[tuple[str, int], ...] = (("workload.collective_timeout", ends),)
    return Finding("FD327", spec.name, "hang_after", others, message, help, advised)


def healthy_step_hangs(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD304: a healthy worker shows no sign of life for as long as `hang_after`."""
    hang, load = spec.hang_after_ns, spec.workload
    longest = _longest_gap_ns(spec)
    begins = begins_ns(spec) + load.restore_ns
    if hang is None or spec.kind != "task" or hang > max(longest, begins):
        return None
    step, other = f"a step of its workload takes {_text(load.step_ns)}", ("workload.step_time", load.step_ns)
    if hang > longest:
        step = f"its workload needs {_text(begins)} before the first step"
        other = ("workload.startup", load.startup_ns)
        if load.warmup_ns > load.startup_ns:
            other = ("workload.warmup", load.warmup_ns)
    elif hang > load.step_ns:
        step = f"steps of its workload with a checkpoint between them are {_text(longest)} apart"
        other = ("workload.checkpoint_time", load.checkpoint_ns)
    least = more(max(2 * longest, begins + longest))
    message = f"{step}: a healthy worker counts as hanging"
    help = f'make hang_after= as long as several steps: "{_text(least)}" or more'
    return Finding("FD304", spec.name, "hang_after", (other,), message, help, ("hang_after", least))


def first_step_too_late(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD180, and FD328 where only a restart with a checkpoint takes too long: `start_timeout` before the first step."""
    limit, load = spec.start_timeout_ns, spec.workload
    if limit is None or spec.kind != "task":
        return None
    for code, restore in ("FD180", 0), ("FD328", load.restore_ns):
        first = begins_ns(spec) + restore
        if limit >= first or limit + graph.options.cause_window_ns > first + load.step_ns:
            continue  # a worker that steps within the window after its limit is spared (R15)
        parts = [("start-up", load.startup_ns), ("restore", restore), ("warm-up", load.warmup_ns)]
        names = ("workload.startup", "workload.restore_time", "workload.warmup")
        others = tuple((name, ns) for name, (_, ns) in zip(names, parts, strict=True) if ns)
        least = more((begins_ns(spec) + load.restore_ns + 2 * load.step_ns) * 5 // 4)
        ends = "each attempt that resumes from a checkpoint" if restore else "every attempt"
        message = (
            f"start_timeout={_text(limit)} ends {ends} before its first step, which begins after {_text(first)} "
            f"({_sum(parts)})"
        )
        return _write_more(code, spec.name, "start_timeout", others, message, least)
    return None


def ready_too_late(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD181, and FD328 where only a restart with a checkpoint takes too long: `ready_timeout` before readiness."""
    limit, load = spec.ready_timeout_ns, spec.workload
    restore = load.restore_ns if spec.kind == "task" else 0
    ready = load.startup_ns + restore
    if spec.ready is None or limit > ready:
        return None
    code, ends, after = "FD181", "every attempt", _text(load.startup_ns)
    others = [("workload.startup", load.startup_ns)]
    if limit > load.startup_ns:
        code, ends = "FD328", "each attempt that resumes from a checkpoint"
        after = f"{_text(ready)} ({_sum([('start-up', load.startup_ns), ('restore', restore)])})"
        others.append(("workload.restore_time", restore))
    message = f"ready_timeout={_text(limit)} ends {ends} before it is ready, after {after}"
    return _write_more(code, spec.name, "ready_timeout", tuple(others), message, more(ready * 3 // 2))


def drain_saves_nothing(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD329: a world that has to leave a node is stopped before it has done its step and saved (R14)."""
    need, mates = leave_ns(spec), graph.mates_of(spec.name)
    drain = max(other.drain_ns for other in graph.roles if other.name in mates)
    if spec.kind != "task" or drain >= need:
        return None
    message = (
        f"drain={_text(drain)} is too short to save when a node is drained: up to {_text(need)} pass until the step is "
        f"done and its checkpoint is complete ({leave_text(spec)})"
    )
    load = spec.workload
    others = (("workload.checkpoint_time", load.checkpoint_ns), ("workload.step_time", load.step_ns))
    return _write_more("FD329", spec.name, "drain", others, message, more(need * 5 // 4))


def budget_never_ends(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD124, and FD332 where it takes the start-up as well: charges leave the window before the budget is used up."""
    for level, policy in enumerate(spec.restart.chain() if spec.restart is not None else ()):
        found = _by_backoff(graph, spec, policy) or _by_start_up(graph, spec, policy)
        if found is not None:
            prefix = f"restart.{'then.' * level}"
            others = tuple((name.replace("restart.", prefix), ns) for name, ns in found.others)
            advised = (f"{prefix}within", found.advised[1])
            return found._replace(name=f"{prefix}within", others=others, advised=advised)
    return None


def _by_backoff(graph: RoleGraph, spec: RoleSpec, policy: RestartPolicy) -> Finding | None:
    """Return the finding if the restarts of the budget take longer than its window by back-off alone."""
    waits, window = backoff_ns(policy), policy.within_ns
    if window is None or waits <= window:
        return None
    message = (
        f"the budget can never run out: {_count(policy)} take longer than {_text(window)} by back-off alone, "
        f"{_text(waits)}"
    )
    others = (("restart.backoff", policy.backoff_ns), ("restart.backoff_max", policy.backoff_max_ns))
    tail = ", or make max_restarts= smaller"
    return _write_more("FD124", spec.name, "restart.within", others, message, more(2 * waits), tail)


def _by_start_up(graph: RoleGraph, spec: RoleSpec, policy: RestartPolicy) -> Finding | None:
    """Return the finding if a role that fails at each first step never has the budget's charges within its window."""
    up, window = begins_ns(spec), policy.within_ns
    if window is None or not policy.max_restarts or is_guess(spec):
        return None
    waits = backoff_ns(policy) if up < policy.backoff_reset_ns else 0  # else each back-off is the first one
    total = waits + policy.max_restarts * up
    if total < window:
        return None
    message = (
        f"a role that fails at its first step is restarted for ever: {_count(policy)} take {_text(total)} with "
        f"start-up and back-off, and the budget looks back only {_text(window)}"
    )
    least = more((total + policy.max_restarts * SECOND) * 3 // 2)
    return _write_more("FD332", spec.name, "restart.within", _start_up(spec), message, least, ", or leave it out")


def backoff_never_grows(graph: RoleGraph, spec: RoleSpec) -> Finding | None:
    """FD335: the series of back-offs begins anew within each start-up, so no restart ever waits (R10)."""
    policy = spec.restart
    if policy is None or policy.max_restarts < 2 or not policy.backoff_ns:
        return None
    waits = ("backoff_ns", "backoff_max_ns", "backoff_reset_ns")
    up, reset = begins_ns(spec), policy.backoff_reset_ns
    if up < reset or all(getattr(policy, name) == getattr(FIRST_WAITS, name) for name in waits):
        return None
    message = (
        f"backoff={_text(policy.backoff_ns)} is never waited for when the role fails at its first step: that comes "
        f"{_text(up)} after the start, and backoff_reset={_text(reset)} begins the series anew before that"
    )
    return _write_more("FD335", spec.name, "restart.backoff_reset", _start_up(spec), message, more(2 * up))


# What the rules compute.


def begins_ns(spec: RoleSpec) -> int:
    """Return how long after its first start a role begins its first step, by its workload, in ns."""
    return spec.workload.startup_ns + spec.workload.warmup_ns


def leave_ns(spec: RoleSpec) -> int:
    """Return the longest time that a world needs to leave a node in order: one step, and a whole checkpoint, in ns."""
    load = spec.workload
    return round(load.step_ns * (1 + load.step_spread)) + load.checkpoint_ns


def leave_text(spec: RoleSpec) -> str:
    """Return the parts of `leave_ns` in words."""
    checkpoint_ns = spec.workload.checkpoint_ns
    return _sum([("step", leave_ns(spec) - checkpoint_ns), ("checkpoint", checkpoint_ns)])


def backoff_ns(policy: RestartPolicy) -> int:
    """Return the sum of all waits that a budget pays for, in ns: none, then doubling up to a limit (R10)."""
    total, wait, waits = 0, policy.backoff_ns, max(policy.max_restarts - 1, 0)
    while 0 < wait < policy.backoff_max_ns and waits:
        total, wait, waits = total + wait, wait * 2, waits - 1
    return total + waits * min(wait, policy.backoff_max_ns)


def _longest_gap_ns(spec: RoleSpec) -> int:
    """Return the longest time between two steps of a healthy worker: the slowest step, and a checkpoint, in ns."""
    load = spec.workload
    return round(load.step_ns * (1 + load.step_spread)) + load.blocking_ns


def _start_up(spec: RoleSpec) -> tuple[tuple[str, int], ...]:
    """Return the arguments that say when the first step begins, each with its value in ns."""
    load = spec.workload
    warmup = (("workload.warmup", load.warmup_ns),) if load.warmup_ns else ()
    return (("workload.startup", load.startup_ns), *warmup)


def is_guess(spec: RoleSpec) -> bool:
    """Return whether the user has said nothing about the timing of the role, so that its workload is a guess."""
    startup_ns = (2 if spec.kind == "service" else 5) * SECOND
    return replace(spec.workload, collective="") == WorkloadSpec(startup_ns=startup_ns)


def _count(policy: RestartPolicy) -> str:
    return f"{policy.max_restarts} restart{'s' * (policy.max_restarts != 1)}"


def _sum(parts: Sequence[tuple[str, int]]) -> str:
    """Return the parts of a sum in words: `5s start-up + 7m warm-up`. Parts of 0 are left out."""
    return " + ".join(f"{_text(ns)} {name}" for name, ns in parts if ns)


def _unit(ns: int) -> int:
    """Return the unit in which a user would write about this duration, in ns."""
    return MS * 100 if ns < 10 * SECOND else SECOND if ns < 3 * MINUTE else MINUTE


def more(ns: int) -> int:
    """Return the next duration that is not shorter, and easy to write."""
    return -(-ns // _unit(ns)) * _unit(ns)


def less(ns: int) -> int:
    """Return the next duration that is not longer, and easy to write; at least a millisecond."""
    unit = _unit(ns) if ns >= _unit(ns) else MS
    return max(ns // unit * unit, MS)


JOB_RULES: tuple[Callable[[RoleGraph], Finding | None], ...] = (
    lease_without_heartbeat,
    one_heartbeat_late,
    outage_too_short,
)
RULES: tuple[Callable[[RoleGraph, RoleSpec], Finding | None], ...] = (
    hang_found_too_late,
    healthy_step_hangs,
    first_step_too_late,
    ready_too_late,
    drain_saves_nothing,
    budget_never_ends,
    backoff_never_grows,
)
OF_WORKLOAD = (healthy_step_hangs, first_step_too_late, ready_too_late, drain_saves_nothing, backoff_never_grows)
