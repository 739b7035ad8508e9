"""The terminal's view of a job: each record of the journal in words, and the output of this host's workers."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Literal

from flowdist.control.protocol.effects import Decided, Level, StartReplica, StopReplica
from flowdist.control.protocol.events import NodeJoined, ReplicaExited, ReplicaStopped
from flowdist.control.protocol.ids import NodeName, ReplicaId
from flowdist.graph import RoleGraph
from flowdist.record.journal import Record
from flowdist.runtime.run_folder.logs import Follower

Kind = Literal["event", "warning", "error", "failed", "stdout", "stderr"]  # failed: why the job fails
Show = Callable[[Kind, str], None]
KINDS: dict[Level, Kind] = {"info": "event", "warning": "warning", "refused": "warning", "error": "error"}


class EventPrinter:
    """Printer of records on the terminal, in order with the output of workers on the nodes `here`."""

    def __init__(self, graph: RoleGraph, follower: Follower, here: Container[NodeName], show: Show) -> None:
        self._graph, self._follower, self._here, self._show = graph, follower, here, show
        self._latest: dict[ReplicaId, StartReplica] = {}
        self._suspended: dict[ReplicaId, NodeName] = {}  # replicas whose workers wait in place for their next attempt

    def skip(self, record: Record) -> None:
        """Remember the starts in a record from before the run was resumed, or this host joined; print nothing."""
        self._latest |= {e.replica: e for e in record.effects if isinstance(e, StartReplica)}

    def print(self, record: Record) -> None:
        """Print what a record says, and follow the attempts that start here, after the rest of what they replace."""
        if isinstance(record.event, ReplicaExited | ReplicaStopped):
            self._follower.read()  # the worker's last output comes before the message about its end
        if isinstance(record.event, ReplicaExited) and record.event.kind is None:
            self._show("event", f"{record.event.replica}: finished")
        self._note_suspended(record)
        for start in [effect for effect in record.effects if isinstance(effect, StartReplica)]:
            self._print_start(start)
        for effect in record.effects:
            if isinstance(effect, Decided):
                self._show("failed" if effect.what == "job_failed" else KINDS[effect.level], effect.text)

    def _note_suspended(self, record: Record) -> None:
        event = record.event
        if isinstance(event, ReplicaStopped) and event.suspended and event.replica in self._latest:
            self._suspended[event.replica] = self._latest[event.replica].node
        elif isinstance(event, NodeJoined):  # a node that joins runs nothing
            self._suspended = {replica: node for replica, node in self._suspended.items() if node != event.node}
        for effect in record.effects:
            if isinstance(effect, StopReplica) and not effect.in_place:
                self._suspended.pop(effect.replica, None)

    def _print_start(self, start: StartReplica) -> None:
        before = self._latest.get(start.replica)
        if before is not None:
            self._follower.read()
            self._follower.end(before)
        self._latest[start.replica] = start
        if start.node in self._here:
            self._follower.follow(start, self._graph.role(start.replica.role))
        attempt = f" (attempt {start.attempt})" if start.attempt > 1 else ""
        ranks = f", rank {start.rank} of {start.world_size}" if start.world_size > 1 else ""
        how = "continues in place" if self._suspended.pop(start.replica, None) == start.node else "starts"
        self._show("event", f"{start.replica}: {how} on {start.node}{attempt}{ranks}")
