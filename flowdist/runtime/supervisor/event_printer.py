"""What the terminal shows of a job: each record of the journal in words, and what the workers print here."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from flowdist.control.protocol.effects import Level, Notify, StartReplica, StopReplica
from flowdist.control.protocol.events import NodeJoined, ReplicaExited, ReplicaStopped
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph
from flowdist.record.journal import Record
from flowdist.runtime.run_folder.logs import Follower

Kind = Literal["event", "warning", "error", "stdout", "stderr"]
Show = Callable[[Kind, str], None]
KINDS: dict[Level, Kind] = {"info": "event", "warning": "warning", "refused": "warning", "error": "error"}


class Teller:
    """`here` are the nodes whose workers write their files on this machine."""

    def __init__(self, graph: RoleGraph, follower: Follower, here: Container[NodeName], show: Show) -> None:
        self._graph, self._follower, self._here, self._show = graph, follower, here, show
        self._latest: dict[ReplicaId, StartReplica] = {}
        self._staying: dict[ReplicaId, NodeName] = {}  # whose workers wait there, in place, for the next generation

    def skip(self, record: Record) -> None:
        """It was told already, when it happened."""
        self._latest |= {e.replica: e for e in record.effects if isinstance(e, StartReplica)}

    def tell(self, record: Record) -> None:
        if isinstance(record.event, ReplicaExited | ReplicaStopped):
            self._follower.read()  # its last words come before what is made of them
        if isinstance(record.event, ReplicaExited) and record.event.kind is None:
            self._show("event", f"{record.event.replica}: finished")
        self._note_who_stays(record)
        for start in [effect for effect in record.effects if isinstance(effect, StartReplica)]:
            self._tell_start(start)
        for effect in record.effects:
            if isinstance(effect, Notify):
                self._show(KINDS[effect.level], effect.text)

    def _note_who_stays(self, record: Record) -> None:
        event = record.event
        if isinstance(event, ReplicaStopped) and event.suspended and event.replica in self._latest:
            self._staying[event.replica] = self._latest[event.replica].node
        elif isinstance(event, NodeJoined):  # nothing runs on it
            self._staying = {replica: node for replica, node in self._staying.items() if node != event.node}
        for effect in record.effects:
            if isinstance(effect, StopReplica) and not effect.in_place:
                self._staying.pop(effect.replica, None)

    def _tell_start(self, start: StartReplica) -> None:
        before = self._latest.get(start.replica)
        if before is not None:
            self._follower.read()
            self._follower.end(before)
        self._latest[start.replica] = start
        if start.node in self._here:
            self._follower.follow(start, self._graph.role(start.replica.role))
        again = f" (attempt {start.attempt})" if start.attempt > 1 else ""
        ranks = f", rank {start.rank} of {start.world_size}" if start.world_size > 1 else ""
        does = "goes on in place" if self._staying.pop(start.replica, None) == start.node else "starts"
        self._show("event", f"{start.replica}: {does} on {start.node}{again}{ranks}")
