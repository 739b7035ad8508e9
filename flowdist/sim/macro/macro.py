"""Macro mode: weeks of a gang on a hundred thousand GPUs, from one change of membership to the next."""

from __future__ import annotations

import heapq
from functools import partial

from flowdist.control.protocol.effects import Decided, What
from flowdist.control.protocol.events import Event, NodeGone, NodeJoined, TimePassed
from flowdist.faults.grammar import Plan
from flowdist.faults.rates import Arrivals
from flowdist.faults.targets import added_node
from flowdist.record.journal import FaultLine, Header, Line, record
from flowdist.sim.macro.books import NEVER, MacroResult
from flowdist.sim.macro.fault_effects import apply_fault
from flowdist.sim.macro.gang import add_node, close, form
from flowdist.sim.macro.job import Job, Tell
from flowdist.sim.macro.scope import Scope


class Macro:
    """Main loop of one job in macro mode: create it, and call `run`.

    `scope` is what `scope_of` made of the topology and the `plan`. The seed draws the faults of the rates, and the
    start-up times; 0 has nominal start-up times. `tell` is called at each change with the time in ns, what it is
    (`fault`, `gone`, `joined`, `incident`, `forms`, `ends`), a name (of the fault's target, the node, the kind of
    incident, the generation, the outcome), and a line of text. For a fault that line is the fault.
    """

    def __init__(self, scope: Scope, plan: Plan, *, seed: int = 0, tell: Tell | None = None) -> None:
        arrivals = Arrivals(plan.rates, scope.graph, scope.nodes, seed, plan.starts)
        job = self._job = Job(scope, seed=seed, arrivals=arrivals, tell=tell)
        self.result = job.result
        for add in plan.adds:
            job.at(add.at_ns + job.times.message, partial(add_node, job, job.names[add.node]))
        for fault in plan.faults:
            assert fault.when.at_ns is not None
            job.at(fault.when.at_ns + fault.offset_ns, partial(apply_fault, job, fault.target, fault))
        form(job, job.times.message)  # the first nodes have joined

    def run(self, until: int | None = None) -> MacroResult:
        """Run to the end of the job or to `until` (ns), else until nothing can happen, and return the `result`."""
        job, result, arrivals = self._job, self.result, self._job.arrivals
        end = job.until = NEVER - 1 if until is None else until
        while result.outcome is None:
            next_fault = arrivals.next_ns() or NEVER
            planned = job.later[0][0] if job.later else NEVER
            now = min(job.due, planned, next_fault)
            if now > end:
                break
            if job.due < min(planned, next_fault):
                job.on_due(job, now)
            elif planned <= next_fault:
                heapq.heappop(job.later)[-1](now)
            else:
                _, rate, target = arrivals.take()
                apply_fault(job, target, rate, now)
        if result.outcome is None:
            close(job, job.books.since if until is None else until)
        return result


class MacroTrace:
    """Trace of a run in the format of a journal: a line for each fault and each change of membership.

    Pass `hear` to `Macro` as `tell`, and read `lines` after the run. Messages between controller and agents are not in
    it, so no controller can replay it. Its header, which names the seed and the rates, says so with the option
    `fidelity`.
    """

    def __init__(self, scope: Scope, plan: Plan, seed: int) -> None:
        nodes = scope.graph.cluster.nodes
        self._specs = {node.name: node for node in nodes}
        self._graph, self._n = scope.graph, 0
        options = {"fidelity": "macro"} | plan.rate_options
        names = tuple(node.name for node in nodes)
        self.lines: list[Line] = [Header(scope.graph, names, seed=seed, options=options)]

    def hear(self, now: int, what: str, name: str, words: str) -> None:
        """Append the line of one change. The arguments are those of `tell` of `Macro`."""
        if what == "fault":
            self.lines.append(FaultLine(now, words, name))
            return
        event: Event = TimePassed()
        decided: What = "incident_opened"
        if what == "gone":
            event, decided = NodeGone(name, words), "node_lost"
        elif what == "joined":
            event, decided = NodeJoined(name, self._specs.get(name) or added_node(name, self._graph)), "node_joined"
        elif what == "incident":
            words = f"incident ({name}): {words}"
        elif what == "ends":
            words = f"the job has {name}: {words}"
            decided = "job_succeeded" if name == "succeeded" else "job_failed"
        self._n += 1
        self.lines.append(record(self._n, now, event, [Decided(decided, name, words)]))
