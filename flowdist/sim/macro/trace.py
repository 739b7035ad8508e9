"""What macro mode tells, in the record's lines: the same schema as a journal's, with one line a change.

What is said between controller and agents is not in it, so no controller can replay it; the header says so.
"""

from __future__ import annotations

from flowdist.control.protocol.effects import Notify
from flowdist.control.protocol.events import Event, NodeGone, NodeJoined, TimePassed
from flowdist.faults.grammar import Plan
from flowdist.graph import NodeSpec
from flowdist.record.journal import FaultLine, Header, Line, record
from flowdist.sim.macro.scope import Scope

FIDELITY = "fidelity"


class MacroTrace:
    """`hear` is for `Macro(tell=...)`; `lines` are what it has heard."""

    def __init__(self, scope: Scope, plan: Plan, seed: int) -> None:
        nodes = scope.graph.cluster.nodes
        self._specs = {node.name: node for node in nodes}
        self._like, self._role, self._n = nodes[0], scope.role, 0
        options = {FIDELITY: "macro"}
        if plan.rates:
            options["rates"] = " ".join(rate.spec for rate in plan.rates)
        names = tuple(node.name for node in nodes)
        self.lines: list[Line] = [Header(scope.graph, names, seed=seed, options=options)]

    def hear(self, now: int, what: str, name: str, words: str) -> None:
        if what == "fault":
            self.lines.append(FaultLine(now, words, name))
            return
        event: Event = TimePassed()
        if what == "gone":
            event = NodeGone(name, words)
        elif what == "joined":
            like = self._like
            spec = self._specs.get(name) or NodeSpec(name, like.cpu, like.gpu, like.memory, like.labels)
            event = NodeJoined(name, spec)
        elif what == "forms":
            words = f"{self._role.name}: generation {name} forms with {words}"
        elif what == "incident":
            words = f"incident ({name}): {words}"
        else:
            words = f"the job has {name}: {words}"
        self._n += 1
        self.lines.append(record(self._n, now, event, [Notify(words)]))
