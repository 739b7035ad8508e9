"""Macro mode: weeks of one gang on a hundred thousand GPUs, from one change of membership to the next."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

from flowdist.faults.grammar import Fault, Plan, Rate
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
        fault_seed = seed if fault_seed is None else fault_seed
        job = self._job = Job(scope, plan, seed=seed, fault_seed=fault_seed, tell=tell)
        self.result = job.result
        for wanted in plan.scales:
            self._plan(wanted.at_ns, partial(scale, job, wanted.replicas), is_size=True)
        for order in plan.drains:
            job.at(order.at_ns, partial(drain, job, job.names[order.node]))
        for add in plan.adds:
            job.at(add.at_ns + job.times.message, None, job.names[add.node])
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            hit = partial(self.hit, fault.target, fault)
            self._plan(fault.when.at_ns + fault.offset_ns, hit, is_size=fault.kind == "scale")
        job.companions = self._auxiliary = AuxiliaryRoles(job)
        self._steady = SteadyState(job) if may_become_steady(job) and not step_by_step else None
        # The first nodes have joined, so the minima of all roles get seats, and the gang forms (R2).
        if scope.beside:
            job.seats.fill(job.times.message, job.role.min_replicas)
        self._auxiliary.admit(job.times.message)
        form(job, job.times.message)

    def _plan(self, at: int, action: Callable[[int], None], *, is_size: bool) -> None:
        """Schedule a fault or an order; one for another size counts at once if the first nodes have not joined by then.

        Otherwise the first generation would form with the size of the topology.
        """
        if is_size and at < self._job.times.message:
            action(at)
        else:
            self._job.at(at, action)

    def run(self, until: int | None = None) -> MacroResult:
        """Run to the end of the job, or to the time `until` in ns, and return `result`, complete up to then.

        Without `until` the run also ends when nothing is left that could happen.
        """
        job, result, later, arrivals = self._job, self.result, self._job.later, self._job.arrivals
        end = job.until = NEVER - 1 if until is None else until
        next_fault = arrivals.next_ns() or NEVER
        while result.outcome is None:
            if self._steady is not None and is_steady(job) and self._auxiliary.are_settled:
                left = self._steady.run(end)
                if left is not None:
                    self.hit(*left)
                next_fault = arrivals.next_ns() or NEVER
                if result.outcome is not None:
                    break
            at = later[0][0] if later else NEVER
            if job.due < at and job.due < next_fault:
                if job.due > end:
                    break
                job.on_due(job, job.due)
            elif at <= next_fault:
                if at > end:
                    break
                self._happen(heapq.heappop(later))
            elif next_fault > end:
                break
            else:
                _, rate, target = arrivals.take()
                self.hit(target, rate, next_fault)
                next_fault = arrivals.next_ns() or NEVER
        if result.outcome is None:
            close(job, job.books.since if until is None else until)
        return result

    def _happen(self, entry: Later) -> None:
        """Carry out an entry of `Job.later`: an action, a node that joins, or a generation that tries to grow."""
        now, _, action, node = entry
        if action is not None:
            action(now)
        elif node >= 0:
            add_node(self._job, node, now)
        else:
            grow(self._job, -2 - node, now)

    def hit(self, target: str, what: Fault | Rate, now: int) -> None:
        """Apply a fault, or a fault of a rate, to the target named `target`. `now` is its time in ns."""
        apply_fault(self._job, target, what, now)
