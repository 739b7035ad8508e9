"""The roles beside the gang as one, in macro mode: who lacks room, what the gang waits for, what it restarts with.

A service that the gang depends on with on_restart="restart" takes it along: its loss is an incident of both. All of it
stops first, then the service gets ready, then the gang forms (R5, R6). Until the gang runs again the incident is open,
and whatever is lost meanwhile makes all of it start anew. With on_restart="reconnect" the gang waits in its work for as
long as the service is away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.sim.macro.auxiliary_replicas import Beside
from flowdist.sim.macro.result import NEVER

if TYPE_CHECKING:
    from flowdist.sim.macro.macro import Macro


class Others:
    """`joint` are replicas that are in the open incident of the gang, `away` those that it waits for in its work."""

    def __init__(self, macro: Macro) -> None:
        self._macro = macro
        self.roles = [Beside(macro, role, room) for role, room in macro.scope.beside]
        for role in self.roles:
            role.seats.others_have_room = lambda role=role: not self.lack_room(role)  # type: ignore[misc]
        macro.seats.others_have_room = lambda: not self.lack_room(None)
        gates = {gate.role: gate for gate in macro.role.gates}
        self._upstream = [role for role in self.roles if role.role.name in gates]
        for role in self._upstream:
            gate = gates[role.role.name]
            role.has_to_be_ready = gate.condition == "ready"
            role.is_upstream, role.takes_along = True, gate.on_restart == "restart"
        self.joint: dict[tuple[str, int], Beside] = {}
        self.away: dict[str, None] = {}

    def lack_room(self, asker: Beside | None) -> bool:
        """Another role than that of the asker is below its minimum and has no room (R22). None is the gang."""
        macro = self._macro
        if asker is not None and macro.seats.taken + macro.seats.free < macro.role.min_replicas:
            return True
        return any(role is not asker and role.is_short for role in self.roles)

    @property
    def are_settled(self) -> bool:
        """Nothing that becomes of the gang makes a difference to them, and they are there for it."""
        waits = self.joint or self.away or self._macro.books.has_stalled
        return not waits and all(role.is_settled for role in self.roles)

    def let_it_form(self, now: int) -> bool:
        """All that the gang waits for is so far (R1)."""
        return all(role.is_so_far(now) for role in self._upstream)

    def admit(self, now: int) -> None:
        for role in self.roles:
            role.admit(now)

    def settle(self, now: int) -> None:
        """Seats were lost, or are free, or somebody has started: that may concern any of the roles."""
        macro = self._macro
        if not self.roles or macro.result.outcome is not None:
            return
        if macro.is_started(now):
            self.joint.clear()
        if macro.phase == "running" or not self._upstream:
            macro.take_room(now)
        for role in self.roles:
            role.settle(now)
        macro.take_room(now)  # it may have waited for them
        for role in self._upstream:
            role.note_who_stays_away(now)

    # Incidents of the gang and of what it depends on.

    @property
    def take_it_along(self) -> bool:
        """The gang runs, or is about to again: it restarts with what it depends on."""
        return self._macro.result.generations > 0

    def lose(self, role: Beside, replica: int, reason: str, now: int) -> None:
        """A replica that was up is lost, and the gang restarts with it."""
        macro = self._macro
        self.joint[role.role.name, replica] = role
        if macro.phase in ("opening", "running"):
            macro.open_incident("node_lost", reason, now, goes_on=macro.phase == "running")
            return
        macro.note_incident("node_lost", reason, now)
        macro.due = max(macro.due if macro.phase == "stopping" else now, self.stop(now))
        macro.phase, macro.do = "stopping", macro.stopped
        if macro.pending is not None:
            macro.at(macro.pending, self.outwait)
        macro.note_change(reason, now, chosen=False)

    def outwait(self, now: int) -> None:
        """The gang would give up its waiting for nodes now, but waits for something else by then."""
        macro = self._macro
        if macro.pending == now and macro.phase in ("stopping", "gated"):
            macro.pending = None
            if macro.books.bucket == "waiting":
                macro.books.move("re-formation", macro.ever, now)

    def stop(self, now: int) -> int:
        """Whatever is in the incident of the gang stops, and counts one more change. Returns when all of it has."""
        ends = now
        for (_, replica), role in self.joint.items():
            ends = max(ends, role.stop(replica, now))
            role.note_change(replica, now)
        return ends

    def start(self, now: int) -> None:
        """All of the incident is gone: each may start, in the order of the gates."""
        for (_, replica), role in self.joint.items():
            role.go_on(replica)
        for role in self.roles:
            role.settle(now)

    # Whom the gang waits for in its work.

    def stall(self, who: str, now: int) -> None:
        macro = self._macro
        if not self.away and macro.books.begun is not None:
            macro.books.stall(now)
            if macro.phase == "running":
                macro.due = NEVER
        self.away[who] = None

    def go_on(self, who: str, now: int) -> None:
        """It is there again, or nobody asks for it any more."""
        macro = self._macro
        if self.away.pop(who, who) is None and not self.away and macro.books.begun is not None:
            done = macro.books.go_on(now)
            if macro.phase == "running":
                macro.due = done

    # The end of the job.

    def end_in_order(self, now: int) -> int:
        """When all of them have ended, dependents first; the gang is over."""
        for depth in (2, 1, 0):
            now = max([now, *(role.ends_by(now) for role in self.roles if role.depth == depth)])
        return now

    def end_at_once(self, now: int) -> int:
        return max([now, *(role.ends_by(now) for role in self.roles)])
