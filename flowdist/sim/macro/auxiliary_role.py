"""One role beside the gang, in macro mode: each replica is a world of its own, on nodes that only this role can use.

The replicas fail with their nodes and in no other way. They are played step by step, as control decides: seats, the
gate on the gang, membership changes in a row (R8), waiting for a node in vain (R12). A role that is below its minimum
without room does not block other roles, since its nodes have no room for them (R2). But no node is cordoned meanwhile
(R22).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from flowdist.control.incidents.health import exceeds_row, is_healthy, next_free_row, row_text
from flowdist.control.protocol.ids import ReplicaId
from flowdist.faults.streams import spread
from flowdist.graph import RoleSpec, format_duration
from flowdist.sim.engine.node import TERM_NS
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.gang import fail, resume, stall
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.result import NEVER
from flowdist.sim.macro.seats import Seats

Phase = Literal["waiting", "opening", "running", "stopping", "over"]


@dataclass(slots=True)
class AuxiliaryReplica:
    """One replica.

    Attributes:
        turn: Number of phases so far. What was planned in an earlier phase does not happen.
        ordered: When it was told to start.
        formed: When the controller knows that it runs.
        ready: When the controller knows that it is ready.
        free_row: Membership changes in a row without progress or health between them.
    """

    books: Books
    phase: Phase = "waiting"
    turn: int = 0
    generation: int = 0
    attempt: int = 0
    ordered: int = 0
    formed: int = NEVER
    ready: int = NEVER
    free_row: int = 0


class AuxiliaryRole:
    """One role, as the controller knows it.

    Attributes:
        depth: Roles of a higher depth end first: they wait for those of a lower one (R18).
        gate: The gate of the gang on this role; None: it has none. With `on_restart="restart"` the gang restarts with
            the role. Otherwise it waits in its work while a replica is away.
    """

    def __init__(self, job: Job, role: RoleSpec, room: tuple[int, ...]) -> None:
        self._job, self.role = job, role
        self.seats = Seats(role, job.options, room, len(job.scope.graph.cluster.nodes))
        self.replicas = [AuxiliaryReplica(Books(role.workload, 1)) for _ in range(role.max_replicas)]
        self.depth = len(role.gates) + (1 if role.gates and job.role.gates else 0)
        self.gate = next((gate for gate in job.role.gates if gate.role == role.name), None)
        self._serving: dict[int, None] = {}
        self._away: dict[int, None] = {}  # replicas that served, and do not for now
        # Replicas that do not run in full, as the controller knows. In a large role they are few.
        self._unsteady = dict(enumerate(self.replicas))
        self._give_up_at: int | None = None  # while it is below its minimum
        self._succeeded = 0
        self._is_over = False

    @property
    def is_short(self) -> bool:
        """Return whether the role is below its minimum, and has no room for it."""
        return not self._is_over and self._missing > self.seats.free

    @property
    def is_settled(self) -> bool:
        """Return whether generations of the gang make no difference to the role: what waits, waits for a node."""
        if self._is_over:
            return True
        if self.gate is not None and not self.lets_gang_form(NEVER - 1):
            return False
        waits = any(replica.phase == "waiting" for replica in self._unsteady.values())
        return not waits or (self._missing <= 0 and not self.seats.free and not self._seated_and_waiting())

    def lets_gang_form(self, now: int) -> bool:
        """Return whether each replica with a seat is started, or ready, and these are the minimum at least (R1)."""
        seated = [replica for index, replica in self._unsteady.items() if self.seats.node_of[index] is not None]
        return self._missing <= 0 and all(self._is_up(replica, now) for replica in seated)

    @property
    def _restarts_gang(self) -> bool:
        return self.gate is not None and self.gate.on_restart == "restart"

    def _is_up(self, replica: AuxiliaryReplica, now: int) -> bool:
        has_to_be_ready = self.gate is not None and self.gate.condition == "ready"
        return replica.phase == "running" and (replica.ready if has_to_be_ready else replica.formed) <= now

    @property
    def _missing(self) -> int:
        return self.role.min_replicas - self.seats.taken - self._succeeded

    def _turn(self, index: int, phase: Phase) -> None:
        replica = self.replicas[index]
        replica.phase = phase
        replica.turn += 1
        if phase == "over":
            self._unsteady.pop(index, None)
        else:
            self._unsteady[index] = replica
        if phase == "waiting":
            replica.formed = replica.ready = NEVER

    def _seated_and_waiting(self) -> list[int]:
        node_of, unsteady = self.seats.node_of, self._unsteady
        return [i for i in sorted(unsteady) if unsteady[i].phase == "waiting" and node_of[i] is not None]

    def _name(self, index: int) -> str:
        return f"{self.role.name}/{index}"

    # Losses.

    def end_workers(self, node: int, at: int) -> None:
        """Plan the end of the workers on a node that has died."""
        for index in self.seats.on[node]:
            replica = self.replicas[index]
            if replica.phase == "running":
                if self._job.dead_since[node] < replica.formed - self._job.times.message:
                    replica.formed = NEVER
                self._plan(replica, at, partial(self._halt, index, node))

    def _halt(self, index: int, node: int, now: int) -> None:
        replica = self.replicas[index]
        replica.turn += 1
        replica.books.halt(now, answered_until=min(now, self._job.dead_since[node]))
        if index in self._serving:
            del self._serving[index]
            self._away[index] = None
            stall(self._job, self._name(index), now)

    def release_gang(self, now: int) -> None:
        """Let the gang go on without replicas that have no seat: no list of addresses names them."""
        for index in list(self._away):
            if self.seats.node_of[index] is None:
                del self._away[index]
                resume(self._job, self._name(index), now)

    def lose_node(self, node: int, reason: str, now: int) -> Iterator[int]:
        """Handle that the controller knows the node to be lost: its replicas start again once they have a seat.

        Yields:
            Each replica that the gang has to restart with. Before the gang has run there is nothing to restart.
        """
        seats, job = self.seats, self._job
        lost = list(seats.on[node])
        seats.lose(node)
        for index in lost:
            replica = self.replicas[index]
            was_up = replica.phase == "running"
            if was_up:
                seats.note_loss(node, now)
            if was_up and self._restarts_gang and job.result.generations:
                self._turn(index, "stopping")
                yield index
                continue
            if was_up:
                job.note_incident("node_lost", reason, now)
                self.note_change(index, reason, now)
            self._turn(index, "stopping" if replica.phase == "stopping" else "waiting")

    def note_change(self, index: int, reason: str, now: int) -> None:
        """Count a membership change, and fail the job after too many in a row (R8)."""
        options, replica = self._job.options, self.replicas[index]
        progressed = replica.books.has_progressed(now)
        healthy = is_healthy(progressed, replica.formed, now, options.min_uptime_ns)
        replica.free_row = next_free_row(replica.free_row, healthy)
        replica.books.progressed = False
        if exceeds_row(replica.free_row, "node_lost", options):
            fail(self._job, row_text(self._name(index), replica.free_row, options, reason), now)

    def stop(self, index: int, now: int) -> int:
        """Stop a replica that restarts with the gang. Return when the controller knows that it is gone."""
        replica, node = self.replicas[index], self.seats.node_of[index]
        was_up = replica.phase == "running"
        self._turn(index, "stopping")
        return self._stopped_by(replica, node, now) if was_up and node is not None else now

    def let_start(self, index: int) -> None:
        """Let a replica start again: all of its incident is gone."""
        if self.replicas[index].phase == "stopping":
            self._turn(index, "waiting")

    # Starts.

    def admit(self, now: int) -> None:
        """Seat the minimum together with that of the gang, even if it starts later (R2)."""
        self.seats.fill(now, self._missing)
        self.settle(now)

    def settle(self, now: int) -> None:
        """Give seats to the replicas that wait, as long as there are free ones, and start those that may start."""
        seats = self.seats
        self._note_success()
        for index in [index for index, replica in self._unsteady.items() if self._is_up(replica, now)]:
            del self._unsteady[index]
        waiting = [index for index, replica in self._unsteady.items() if replica.phase == "waiting"]
        if self._is_over or self._job.result.outcome is not None or not waiting:
            return
        if not self._may_start(now):
            if now < self._job.formed < NEVER:
                self._job.at(self._job.formed, self.settle)
            return
        if 0 < self._missing <= seats.free:
            seats.fill(now, self._missing)
        if not self._succeeded:
            seats.fill(now, sum(seats.node_of[index] is None for index in waiting))
        self._note_minimum(now)
        for index in self._seated_and_waiting():
            self._open(index, self.replicas[index], now)

    def _may_start(self, now: int) -> bool:
        return not self.role.gates or self._job.is_started(now)

    def _note_minimum(self, now: int) -> None:
        """Plan to fail the job if the role is below its minimum for too long (R12)."""
        if self._missing <= 0:
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + self.role.pending_timeout_ns
            self._job.at(self._give_up_at, self._give_up)

    def _give_up(self, now: int) -> None:
        if self._give_up_at != now or self._is_over:
            return
        self._give_up_at = None  # a role that waits for the gang by now counts the time anew
        if self._may_start(now) and self._missing > 0:
            waited = format_duration(self.role.pending_timeout_ns)
            fail(self._job, f"{self.role.name} was below its minimum for {waited}", now)

    def _plan(self, replica: AuxiliaryReplica, at: int, action: Callable[[int], None]) -> None:
        """Plan an action of the replica, which is dropped if its phase changes before."""
        turn = replica.turn
        self._job.at(at, lambda now: action(now) if replica.turn == turn else None)

    def _open(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        self._turn(index, "opening")
        replica.generation += 1
        self._plan(replica, now + self._job.times.open, lambda at: self._start(index, replica, at))

    def _start(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """Start the replica: its store is open, unless its node died before its agent could say so."""
        job, node, load = self._job, self.seats.node_of[index], self.role.workload
        assert node is not None
        is_dead = not job.alive[node]
        if is_dead and job.dead_since[node] < now - job.times.message:
            return
        self._turn(index, "running")
        replica.ordered = now
        replica.attempt += 1
        replica.books.start(1, 0, now)
        if is_dead:
            return
        replica.formed = now + job.times.started
        entity = f"{ReplicaId(self.role.name, index)}#{replica.attempt}"
        startup = round(load.startup_ns * spread(job.seed, entity, "startup"))
        up = now + job.times.up + startup + (load.restore_ns if replica.books.durable else 0)
        self._plan(replica, up, lambda at: self._begin(index, replica, at))

    def _begin(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        if self.role.kind == "task":
            self._plan(replica, replica.books.begin(now), lambda at: self._complete(index, replica, at))
        elif self.gate is not None:
            if not self._restarts_gang:
                self._serving[index] = None
                self._away.pop(index, None)
                resume(self._job, self._name(index), now)
            replica.ready = now + self._job.times.message
            self._plan(replica, replica.ready, self._job.companions.settle)

    def _complete(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """End the work of the replica. The controller does not hear of it from a node that is cut off."""
        replica.turn += 1
        replica.books.halt(now, done=True)
        node = self.seats.node_of[index]
        if node is not None and self._job.alive[node]:
            self._job.at(now + self._job.times.message, lambda at: self._succeed(index, at))

    def _succeed(self, index: int, now: int) -> None:
        self._turn(index, "over")
        self._succeeded += 1
        self.seats.release(index)
        self._job.companions.settle(now)

    def _note_success(self) -> None:
        """End the role once all replicas with a seat have done their work: those without one are not needed."""
        if self._succeeded and self._missing <= 0 and not self.seats.taken:
            self._is_over = True

    # The end of the job.

    def end(self, now: int) -> int:
        """Tell all replicas to stop, and return when the last of them has ended."""
        job, last = self._job, now
        for index, replica in enumerate(self.replicas):
            node = self.seats.node_of[index]
            if node is None or replica.phase != "running":
                continue
            known = self._stopped_by(replica, node, now)
            last = max(last, known)
            if job.alive[node]:
                replica.books.halt(known - job.times.message)
        return last

    def _stopped_by(self, replica: AuxiliaryReplica, node: int, now: int) -> int:
        """Return when, in ns, the controller learns that a replica has ended, if it orders the replica to stop now.

        A start in progress is finished first, and an agent that is cut off gets the order once it is connected again.
        On a dead node the time is that at which the death becomes known, or `now` if it is known.
        """
        job, times = self._job, self._job.times
        if not job.alive[node]:
            return job.death_known_at.get(node, now)
        # An agent that is cut off for a moment gets the order when it has connected again.
        told = max(now, job.connected_at[node] + times.message) if node in job.cut_off_since else now
        spawned = replica.ordered + times.started - times.message
        return max(told + times.message, spawned) + TERM_NS + times.message

    def close(self, now: int) -> None:
        """Write the generations and saved steps of all replicas into the result."""
        for index, replica in enumerate(self.replicas):
            replica.books.halt(now)
            self._job.result.beside[self._name(index)] = (replica.generation, replica.books.durable)
