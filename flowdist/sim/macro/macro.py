"""Macro mode: weeks of a gang on a hundred thousand GPUs, from one change of membership to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from flowdist.faults.grammar import Fault, Plan, Rate
from flowdist.faults.rates import Arrivals
from flowdist.sim.macro.beside.auxiliary_roles import AuxiliaryRoles
from flowdist.sim.macro.ending import close
from flowdist.sim.macro.fault_effects import apply_fault
from flowdist.sim.macro.gang import add_node, form, grow
from flowdist.sim.macro.job import Job, Tell, is_steady, may_become_steady
from flowdist.sim.macro.orders.departure import drain
from flowdist.sim.macro.orders.scaling import scale
from flowdist.sim.macro.result import NEVER, Later, MacroResult
from flowdist.sim.macro.scope import Scope
from flowdist.sim.macro.steady_state import SteadyState


class Macro:
    """Main loop of one job in macro mode: create it, and call `run`.

    Args:
        scope: What `scope_of` made of the topology and the plan.
        plan: The faults at a time, the rates, and the orders, which `scope_of` has accepted.
        seed: Draws the faults of the rates, and the start-up times; 0 has nominal start-up times.
        fault_seed: Draws the faults of the rates instead of `seed`.
        step_by_step: Do without `SteadyState`. The result is the same; tests compare the two.
        tell: Called at each change with the time in ns, what it is (`fault`, `gone`, `joined`, `incident`, `forms`,
            `ends`), a name (of the fault's target, the node, the kind of incident, the generation, the outcome), and a
            line of text. For a fault that line is the fault.
    """

    def __init__(
        self,
        scope: Scope,
        plan: Plan,
        *,
        seed: int = 0,
        fault_seed: int | None = None,
        step_by_step: bool = False,
        tell: Tell | None = None,
    ) -> None:
        drawn_by = seed if fault_seed is None else fault_seed
        arrivals = Arrivals(plan.rates, scope.graph, scope.nodes, drawn_by, plan.starts)
        jobs = [Job(each, plan, seed=seed, arrivals=arrivals, tell=tell) for each in (scope, *scope.others)]
        job, self._jobs, self._version = jobs[0], jobs, 0
        self.result = job.result
        _link(jobs)
        for wanted in plan.scales:
            self._plan(wanted.at_ns, partial(scale, job, wanted.replicas), is_size=True)
        for order in plan.drains:
            job.at(order.at_ns, partial(drain, job, job.names[order.node]))
        for add in plan.adds:
            owner = next(each for each in jobs if add.node in each.names)
            owner.at(add.at_ns + job.times.message, None, owner.names[add.node])
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            hit = partial(self.hit, fault.target, fault)
            self._plan(fault.when.at_ns + fault.offset_ns, hit, is_size=fault.kind == "scale")
        self._auxiliary = [AuxiliaryRoles(each) for each in jobs]
        for each, roles in zip(jobs, self._auxiliary, strict=True):
            each.companions = roles
        self._steady = SteadyState(job) if may_become_steady(job) and not step_by_step else None
        # The first nodes have joined, so the minima of all roles get seats, and the gangs form (R2).
        now = job.times.message
        for each, roles in zip(jobs, self._auxiliary, strict=True):
            if not each.is_alone:
                each.seats.fill(now, each.role.min_replicas)
            roles.admit(now)
        for each in jobs:
            form(each, now)

    def _plan(self, at: int, action: Callable[[int], None], *, is_size: bool) -> None:
        """Schedule a fault or an order; one for another size counts at once if the first nodes have not joined by then.

        Otherwise the first generation would form with the size of the topology.
        """
        if is_size and at < self._jobs[0].times.message:
            action(at)
        else:
            self._jobs[0].at(at, action)

    def run(self, until: int | None = None) -> MacroResult:
        """Run to the end of the job, or to the time `until` in ns, and return `result`, complete up to then.

        Without `until` the run also ends when nothing is left that could happen.
        """
        job, result, arrivals = self._jobs[0], self.result, self._jobs[0].arrivals
        end = job.until = NEVER - 1 if until is None else until
        next_fault = arrivals.next_ns() or NEVER
        while result.outcome is None:
            if self._steady is not None and is_steady(job) and self._auxiliary[0].are_settled:
                left = self._steady.run(end)
                if left is not None:
                    self.hit(*left)
                next_fault = arrivals.next_ns() or NEVER
                if result.outcome is not None:
                    break
            ending, planned = _soonest(self._jobs)
            at, due = _next_entry(planned), ending.due
            if due < at and due < next_fault:
                if due > end:
                    break
                ending.on_due(ending, due)
                self._note_seats(due)
            elif at <= next_fault:
                if at > end:
                    break
                _happen(planned, heapq.heappop(planned.later))
                self._note_seats(at)
            elif next_fault > end:
                break
            else:
                _, rate, target = arrivals.take()
                self.hit(target, rate, next_fault)
                next_fault = arrivals.next_ns() or NEVER
        self._complete_result(until)
        return result

    def _complete_result(self, until: int | None) -> None:
        """Complete `result`: book the time up to `until` (ns) if the job is not over, and add the other gangs."""
        if self.result.outcome is None:
            last = max(job.books.since for job in self._jobs) if until is None else until
            for job in self._jobs:
                close(job, last)
        for other in self._jobs[1:]:
            self.result.add(other.role.name, other.result)

    def _note_seats(self, now: int) -> None:
        """Let gangs grow that may, if seats or nodes have changed in another group, as control does.

        A gang that has room but has to wait longer because it had made no progress by then is asked again (R8, R13).
        """
        if len(self._jobs) == 1:
            return
        if _version(self._jobs) != self._version and self.result.outcome is None:
            for job in self._jobs:
                grow(job, job.result.generations, now)
            self._version = _version(self._jobs)

    def hit(self, target: str, what: Fault | Rate, now: int) -> None:
        """Apply a fault, or a fault of a rate, to the target named `target`. `now` is its time in ns."""
        for job in self._jobs:
            apply_fault(job, target, what, now)


def _link(jobs: list[Job]) -> None:
    """Let the gangs of one job know each other, and leave to each the nodes of its group.

    Nodes on which no role has room are those of the first gang.
    """
    names = jobs[0].names
    for job in jobs[1:]:
        rooms = (job.scope.seats, *(room for _, room in job.scope.beside))
        job.gangs, job.names = jobs, {name: node for name, node in names.items() if any(room[node] for room in rooms)}
    jobs[0].gangs = jobs
    jobs[0].names = {name: node for name, node in names.items() if not any(name in job.names for job in jobs[1:])}


def _soonest(jobs: list[Job]) -> tuple[Job, Job]:
    """Return the gang whose phase ends first, and the one of which an entry of `Job.later` comes first."""
    if len(jobs) == 1:
        return jobs[0], jobs[0]
    return min(jobs, key=lambda job: job.due), min(jobs, key=_next_entry)


def _version(jobs: list[Job]) -> int:
    """Return a number that grows with each change of seats and nodes in any group."""
    return sum(job.seats.version + job.companions.version for job in jobs)


def _next_entry(job: Job) -> int:
    """Return the time, in ns, of the next entry of `Job.later`; NEVER if there is none."""
    return job.later[0][0] if job.later else NEVER


def _happen(job: Job, entry: Later) -> None:
    """Carry out an entry of `Job.later`: an action, a node that joins, or a generation that tries to grow."""
    now, _, action, node = entry
    if action is not None:
        action(now)
    elif node >= 0:
        add_node(job, node, now)
    else:
        grow(job, -2 - node, now)
