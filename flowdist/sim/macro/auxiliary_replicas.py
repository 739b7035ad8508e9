"""Roles beside the gang, in macro mode: each replica is a world of its own, on nodes that only its role can use.

Its replicas fail with their nodes and in no other way. They are played step by step, as control would decide: seats,
the gate on the gang, five changes in a row, waiting for a node in vain. A role that is short and has no room holds
nobody up, as in control: its nodes are nothing for the others (R2). But no node is cordoned meanwhile (R22).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec, format_duration
from flowdist.sim.engine.node import TERM_NS
from flowdist.sim.engine.streams import spread
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.result import NEVER
from flowdist.sim.macro.seats import Seats

if TYPE_CHECKING:
    from flowdist.sim.macro.macro import Macro


Phase = Literal["waiting", "opening", "running", "stopping", "over"]


@dataclass(slots=True)
class Cell:
    """One replica. `turn` counts what has become of it: what was planned in an earlier one does not happen."""

    books: Books
    phase: Phase = "waiting"
    turn: int = 0
    generation: int = 0
    attempt: int = 0
    ordered: int = 0  # when it was told to start
    formed: int = NEVER  # when that was heard of
    ready: int = NEVER  # when it was heard that it serves
    row: int = 0  # changes of membership without health between


class Beside:
    """One role, and what control knows of it."""

    def __init__(self, macro: Macro, role: RoleSpec, room: tuple[int, ...]) -> None:
        self._macro, self.role = macro, role
        self.seats = Seats(role, macro.options, room, len(macro.scope.graph.cluster.nodes))
        self.cells = [Cell(Books(role.workload, 1)) for _ in range(role.max_replicas)]
        # It ends before whatever it waits for (R18).
        self.depth = len(role.gates) + (1 if role.gates and macro.role.gates else 0)
        self.is_upstream = self.has_to_be_ready = False  # the gang waits for it to start, or to get ready
        self.takes_along = False  # the gang restarts with it, and else waits in its work while it is away
        self._serving: dict[int, None] = {}
        self._away: dict[int, None] = {}  # they served, and do not for now
        self._unsteady = dict(enumerate(self.cells))  # those of which not all is known to run: few, in a large role
        self._pending: int | None = None  # until when it may be below its minimum
        self._succeeded = 0
        self._is_over = False

    @property
    def is_short(self) -> bool:
        """It is below its minimum, and has no room for it."""
        return not self._is_over and self._missing > self.seats.free

    @property
    def is_settled(self) -> bool:
        """Nothing that becomes of the gang makes a difference to it: whoever waits, waits for a node."""
        if self._is_over:
            return True
        if self.is_upstream and not self.is_so_far(NEVER - 1):
            return False
        waits = any(cell.phase == "waiting" for cell in self._unsteady.values())
        return not waits or (self._missing <= 0 and not self.seats.free and not self._seated_and_waiting())

    def is_so_far(self, now: int) -> bool:
        """Each of it that has a seat is started, or ready, and these are its minimum at least (R1)."""
        seated = [cell for replica, cell in self._unsteady.items() if self.seats.node_of[replica] is not None]
        return self._missing <= 0 and all(self._is_up(cell, now) for cell in seated)

    def _is_up(self, cell: Cell, now: int) -> bool:
        return cell.phase == "running" and (cell.ready if self.has_to_be_ready else cell.formed) <= now

    @property
    def _missing(self) -> int:
        return self.role.min_replicas - self.seats.taken - self._succeeded

    def _turn(self, replica: int, phase: Phase) -> None:
        cell = self.cells[replica]
        cell.phase = phase
        cell.turn += 1
        if phase == "over":
            self._unsteady.pop(replica, None)
        else:
            self._unsteady[replica] = cell
        if phase == "waiting":
            cell.formed = cell.ready = NEVER

    def _seated_and_waiting(self) -> list[int]:
        node_of, cells = self.seats.node_of, self._unsteady
        return [
            replica for replica in sorted(cells) if cells[replica].phase == "waiting" and node_of[replica] is not None
        ]

    # What befalls it.

    def node_dies(self, node: int, dies: int) -> None:
        """What runs there ends then."""
        for replica in self.seats.on[node]:
            cell = self.cells[replica]
            if cell.phase == "running":
                if self._macro.died[node] < cell.formed - self._macro.times.message:
                    cell.formed = NEVER
                self._plan(cell, dies, self._halting(replica, cell, node))

    def _halting(self, replica: int, cell: Cell, node: int) -> Callable[[int], None]:
        def halt(now: int) -> None:
            cell.turn += 1
            cell.books.halt(now, heard_until=min(now, self._macro.died[node]))
            if replica in self._serving:
                del self._serving[replica]
                self._away[replica] = None
                self._macro.others.stall(self._name(replica), now)

        return halt

    def note_who_stays_away(self, now: int) -> None:
        """Whoever has no seat is in nobody's list of addresses: the gang goes on without it."""
        for replica in list(self._away):
            if self.seats.node_of[replica] is None:
                del self._away[replica]
                self._macro.others.go_on(self._name(replica), now)

    def gone(self, node: int, reason: str, now: int) -> None:
        """Control knows: whoever was told to start there has to start again, elsewhere or when there is a node."""
        seats, macro = self.seats, self._macro
        lost = list(seats.on[node])
        seats.lose(node)
        for replica in lost:
            cell = self.cells[replica]
            was_up = cell.phase == "running"
            if was_up:
                seats.note_loss(node, now)
            if was_up and self.takes_along and macro.others.take_it_along:
                self._turn(replica, "stopping")
                macro.others.lose(self, replica, reason, now)
                continue
            if was_up:
                macro.note_incident("node_lost", reason, now)
                self.note_change(replica, now)
            self._turn(replica, "stopping" if cell.phase == "stopping" else "waiting")

    def note_change(self, replica: int, now: int) -> None:
        """One more change of membership (R8)."""
        macro, cell = self._macro, self.cells[replica]
        healthy = cell.books.has_progressed(now) or now - cell.formed >= macro.options.min_uptime_ns
        cell.row = 1 if healthy else cell.row + 1
        cell.books.progressed = False
        if cell.row > macro.options.free_incidents_max:
            macro.fail(f"{cell.row} changes of membership of {self._name(replica)} in a row", now)

    def stop(self, replica: int, now: int) -> int:
        """It restarts with the gang. Returns when it is known to be gone."""
        cell, node = self.cells[replica], self.seats.node_of[replica]
        was_up = cell.phase == "running"
        self._turn(replica, "stopping")
        return self._stopped_by(replica, cell, node, now) if was_up and node is not None else now

    def go_on(self, replica: int) -> None:
        """All of the incident is gone: it may start again."""
        if self.cells[replica].phase == "stopping":
            self._turn(replica, "waiting")

    def _name(self, replica: int) -> str:
        return f"{self.role.name}/{replica}"

    # What is decided.

    def admit(self, now: int) -> None:
        """Its minimum is seated with the gang's, whenever it may start (R2)."""
        self.seats.fill(now, self._missing)
        self.settle(now)

    def settle(self, now: int) -> None:
        """Whoever waits gets a seat, if there is one, and starts, if it may."""
        macro, seats = self._macro, self.seats
        self._note_success()
        for replica in [replica for replica, cell in self._unsteady.items() if self._is_up(cell, now)]:
            del self._unsteady[replica]
        waiting = [replica for replica, cell in self._unsteady.items() if cell.phase == "waiting"]
        if self._is_over or macro.result.outcome is not None or not waiting:
            return
        if not self._may_start(now):
            if now < macro.formed < NEVER:
                macro.at(macro.formed, self.settle)
            return
        if 0 < self._missing <= seats.free:
            seats.fill(now, self._missing)
        if not self._succeeded:
            seats.fill(now, sum(seats.node_of[replica] is None for replica in waiting))
        self._note_minimum(now)
        for replica in self._seated_and_waiting():
            self._open(replica, self.cells[replica], now)

    def _may_start(self, now: int) -> bool:
        return not self.role.gates or self._macro.is_started(now)

    def _note_minimum(self, now: int) -> None:
        """Below it the role waits for a node, but not for ever (R12)."""
        if self._missing <= 0:
            self._pending = None
        elif self._pending is None:
            self._pending = now + self.role.pending_timeout_ns
            self._macro.at(self._pending, self._give_up)

    def _give_up(self, now: int) -> None:
        if self._pending != now or self._is_over:
            return
        self._pending = None  # if it waits for something else by now, it counts anew
        if self._may_start(now) and self._missing > 0:
            waited = format_duration(self.role.pending_timeout_ns)
            self._macro.fail(f"{self.role.name} was below its minimum for {waited}", now)

    def _plan(self, cell: Cell, at: int, do: Callable[[int], None]) -> None:
        """Unless something else becomes of it first."""
        turn = cell.turn
        self._macro.at(at, lambda now: do(now) if cell.turn == turn else None)

    def _open(self, replica: int, cell: Cell, now: int) -> None:
        self._turn(replica, "opening")
        cell.generation += 1
        self._plan(cell, now + self._macro.times.open, lambda at: self._start(replica, cell, at))

    def _start(self, replica: int, cell: Cell, now: int) -> None:
        """Its store is open, unless its node died before it could say so."""
        macro, node, load = self._macro, self.seats.node_of[replica], self.role.workload
        assert node is not None
        is_dead = not macro.alive[node]
        if is_dead and macro.died[node] < now - macro.times.message:
            return
        self._turn(replica, "running")
        cell.ordered = now
        cell.attempt += 1
        cell.books.start(1, 0, now)
        if is_dead:
            return
        cell.formed = now + macro.times.started
        entity = f"{ReplicaId(self.role.name, replica)}#{cell.attempt}"
        startup = round(load.startup_ns * spread(macro.seed, entity, "startup"))
        up = now + macro.times.up + startup + (load.restore_ns if cell.books.durable else 0)
        self._plan(cell, up, lambda at: self._begin(replica, cell, at))

    def _begin(self, replica: int, cell: Cell, now: int) -> None:
        if self.role.kind == "task":
            self._plan(cell, cell.books.begin(now), lambda at: self._done(replica, cell, at))
        elif self.is_upstream:
            if not self.takes_along:
                self._serving[replica] = None
                self._away.pop(replica, None)
                self._macro.others.go_on(self._name(replica), now)
            cell.ready = now + self._macro.times.message
            self._plan(cell, cell.ready, self._macro.others.settle)

    def _done(self, replica: int, cell: Cell, now: int) -> None:
        """Its work is done; control hears of it unless its node is cut off."""
        cell.turn += 1
        cell.books.halt(now, done=True)
        node = self.seats.node_of[replica]
        if node is not None and self._macro.alive[node]:
            self._macro.at(now + self._macro.times.message, lambda at: self._succeeds(replica, cell, at))

    def _succeeds(self, replica: int, cell: Cell, now: int) -> None:
        self._turn(replica, "over")
        self._succeeded += 1
        self.seats.release(replica)
        self._macro.others.settle(now)

    def _note_success(self) -> None:
        """All that has a seat has done its work: whoever has none is not needed any more."""
        if self._succeeded and self._missing <= 0 and not self.seats.taken:
            self._is_over = True

    # The end of the job.

    def ends_by(self, now: int) -> int:
        """When all of it has ended, if it is told to stop now."""
        macro, last = self._macro, now
        for replica, cell in enumerate(self.cells):
            node = self.seats.node_of[replica]
            if node is None or cell.phase != "running":
                continue
            known = self._stopped_by(replica, cell, node, now)
            last = max(last, known)
            if macro.alive[node]:
                cell.books.halt(known - macro.times.message)
        return last

    def _stopped_by(self, replica: int, cell: Cell, node: int, now: int) -> int:
        """When control knows that it is gone, if it is told to stop now."""
        macro, times = self._macro, self._macro.times
        if not macro.alive[node]:
            return macro.doomed.get(node, now)
        told = max(now, macro.met[node] + times.message) if node in macro.cuts else now  # it is said again
        spawned = cell.ordered + times.started - times.message
        return max(told + times.message, spawned) + TERM_NS + times.message

    def close(self, now: int) -> None:
        """Everything is counted up to now."""
        for replica, cell in enumerate(self.cells):
            cell.books.halt(now)
            self._macro.result.beside[self._name(replica)] = (cell.generation, cell.books.durable)
