"""Trace of macro mode in the format of a journal: a line for each fault and each change of membership.

Messages between controller and agents are not in it, so no controller can replay it. Its header says so with the option
`fidelity`.
"""

from __future__ import annotations

from flowdist.control.protocol.effects import Decided, What
from flowdist.control.protocol.events import Event, NodeGone, NodeJoined, TimePassed
from flowdist.faults.grammar import Plan
from flowdist.faults.targets import added_node
from flowdist.record.journal import FaultLine, Header, Line, record
from flowdist.sim.macro.scope import Scope


class MacroTrace:
    """Collector of the lines of a trace: pass `hear` to `Macro` as `tell`, and read `lines` after the run.

    Args:
        scope: What `scope_of` made of the topology and the plan.
        plan: The faults; the header names its rates.
        seed: For the header.
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
