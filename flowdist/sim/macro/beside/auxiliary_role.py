"""One role beside the gang, in macro mode: each replica is a world of its own, on nodes that only this role can use.

The replicas fail with their nodes and in no other way. They are played step by step, as control decides: seats, the
gate on the gang, membership changes in a row (R8), waiting for a node in vain (R12). A role that is below its minimum
without room does not block other roles, since its nodes have no room for them (R2). But no node is cordoned meanwhile
(R22).

All times are virtual, in ns. Replicas and nodes are numbers.
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
from flowdist.sim.macro.books import Books
from flowdist.sim.macro.ending import fail
from flowdist.sim.macro.generation.start_ups import WarmNodes, pace_of
from flowdist.sim.macro.job import Job
from flowdist.sim.macro.pace import resume, stall
from flowdist.sim.macro.result import NEVER
from flowdist.sim.macro.seats import Seats

Phase = Literal["waiting", "opening", "running", "stopping", "over"]


@dataclass(slots=True)
class AuxiliaryReplica:
    """State of one replica of an auxiliary role. Times are ns; NEVER: not yet, or not any more.

    Attributes:
        books: Its time, steps and checkpoints.
        turn: Grows whenever the phase changes or its work ends. Actions that were scheduled before do not happen.
        ordered: When the controller ordered it to start.
        formed: When the controller knows that it runs.
        ready: When the controller knows that it is ready.
        free_row: Membership changes in a row without progress or health between them (R8).
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
    """One role beside the gang: its seats, and what the controller decides about its replicas.

    Args:
        job: The job, with the gang.
        role: The role.
        room: By node: how many replicas of the role it has room for.

    Attributes:
        depth: The place of the role in the start order. Roles of a higher depth depend on those of a lower one, and end
            first (R18).
        gate: The gate of the gang on this role; None: the gang does not depend on it. With `on_restart="restart"` the
            gang restarts with a replica of the role. Otherwise it makes no step while a replica is away.
    """

    def __init__(self, job: Job, role: RoleSpec, room: tuple[int, ...]) -> None:
        self._job, self.role = job, role
        self.seats = Seats(role, job.options, room, len(job.scope.graph.cluster.nodes))
        self.replicas = [AuxiliaryReplica(Books(role.workload, 1, role.procs)) for _ in range(role.max_replicas)]
        self.depth = job.depths[role.name]
        self.gate = next((gate for gate in job.role.gates if gate.role == role.name), None)
        self._warm = WarmNodes(role.workload)
        self._serving: dict[int, None] = {}  # replicas that the gang can use now, with `on_restart="reconnect"`
        self._away: dict[int, None] = {}  # replicas that served, and for which the gang waits now
        # Replicas of which the controller does not know that they run or are over. In a large role they are few.
        self._unsteady = dict(enumerate(self.replicas))
        self._give_up_at: int | None = None  # when the job fails because the role is below its minimum; None: it is not
        self._succeeded = 0  # replicas whose work is done
        self._is_over = False  # the role has succeeded

    @property
    def is_short(self) -> bool:
        """Return whether the role is below its minimum, and its free seats do not suffice; False once it is over."""
        return not self._is_over and self._missing > self.seats.free

    @property
    def is_settled(self) -> bool:
        """Return whether a new generation of the gang would change nothing for the role, so that it can be skipped.

        That holds if the gang's gate on the role is open, and no replica waits for anything but a node with room.
        """
        if self._is_over:
            return True
        if self.gate is not None and not self.lets_gang_form(NEVER - 1):
            return False
        waits = any(replica.phase == "waiting" for replica in self._unsteady.values())
        return not waits or (self._missing <= 0 and not self.seats.free and not self._seated_and_waiting())

    def lets_gang_form(self, now: int) -> bool:
        """Return whether the gang's gate on the role is open at `now` (R1).

        It is open if each replica with a seat has started, or is ready if the gate says so, and those that have a seat
        or have succeeded are at least the minimum.
        """
        seated = [replica for index, replica in self._unsteady.items() if self.seats.node_of[index] is not None]
        return self._missing <= 0 and all(self._is_up(replica, now) for replica in seated)

    @property
    def _restarts_gang(self) -> bool:
        return self.gate is not None and self.gate.on_restart == "restart"

    def _is_up(self, replica: AuxiliaryReplica, now: int) -> bool:
        """Return whether the controller knows at `now` that the replica runs, or is ready if the gang needs that."""
        has_to_be_ready = self.gate is not None and self.gate.condition == "ready"
        return replica.phase == "running" and (replica.ready if has_to_be_ready else replica.formed) <= now

    @property
    def _missing(self) -> int:
        """Return how many more seats the role needs for its minimum; 0 or less if it needs none."""
        return self.role.min_replicas - self.seats.taken - self._succeeded

    def _turn(self, index: int, phase: Phase) -> None:
        """Set the phase of a replica, and drop what was scheduled for it."""
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
        """Return the replicas that have a seat and have not begun to start, ascending."""
        node_of, unsteady = self.seats.node_of, self._unsteady
        return [i for i in sorted(unsteady) if unsteady[i].phase == "waiting" and node_of[i] is not None]

    def _name(self, index: int) -> str:
        return f"{self.role.name}/{index}"

    # Losses.

    def end_workers(self, node: int, at: int) -> None:
        """Schedule the end of the replicas' work on a node that has died; the controller learns of that later.

        Args:
            node: The dead node.
            at: When its workers end: at once, or when the agent fences them.
        """
        if at == self._job.dead_since[node]:  # it was killed; one that is cut off keeps what it has imported
            self._warm.forget(node)
        for index in self.seats.on[node]:
            replica = self.replicas[index]
            if replica.phase == "running":
                if self._job.dead_since[node] < replica.formed - self._job.times.message:
                    replica.formed = NEVER
                self._plan(replica, at, partial(self._halt, index, node))

    def _halt(self, index: int, node: int, now: int) -> None:
        """End the work of a replica on a dead node. If it served the gang, the gang waits for it from now on."""
        replica = self.replicas[index]
        replica.turn += 1
        replica.books.halt(now, answered_until=min(now, self._job.dead_since[node]))
        if index in self._serving:
            del self._serving[index]
            self._away[index] = None
            stall(self._job, self._name(index), now)

    def release_gang(self, now: int) -> None:
        """End the gang's wait for replicas without a seat, unless the role lacks them for its minimum.

        The gang's list of addresses does not name them. Without its minimum the role cannot do, so the gang waits.
        """
        for index in list(self._away):
            if self.seats.node_of[index] is None and self._missing <= 0:
                del self._away[index]
                resume(self._job, self._name(index), now)

    def lose_node(self, node: int, reason: str, now: int) -> Iterator[int]:
        """Handle that the controller learns that a node is lost: its replicas lose their seats, and wait for others.

        Each replica that ran opens an incident of its own, unless the gang has to restart with it.

        Yields:
            Each replica that the gang has to restart with; the caller opens the incident. None before the gang has
            formed for the first time, none once its work is done, and none if the gang does not restart with the role.
        """
        seats, job = self.seats, self._job
        lost = list(seats.on[node])
        seats.lose(node)
        for index in lost:
            replica = self.replicas[index]
            was_up = replica.phase == "running"
            if was_up:
                seats.note_loss(node, now)
            if was_up and self._restarts_gang and job.result.generations and job.phase != "over":
                self._turn(index, "stopping")
                yield index
                continue
            if was_up:
                job.note_incident("node_lost", reason, now)
                self.note_change(index, reason, now)
            self._turn(index, "stopping" if replica.phase == "stopping" else "waiting")

    def note_change(self, index: int, reason: str, now: int) -> None:
        """Count a membership change of a replica, and fail the job if it is one too many in a row (R8)."""
        options, replica = self._job.options, self.replicas[index]
        progressed = replica.books.has_progressed(now)
        healthy = is_healthy(progressed, replica.formed, now, options.min_uptime_ns)
        replica.free_row = next_free_row(replica.free_row, healthy)
        replica.books.progressed = False
        if exceeds_row(replica.free_row, "node_lost", options):
            fail(self._job, row_text(self._name(index), replica.free_row, options, reason), now)

    def stop(self, index: int, now: int) -> int:
        """Stop a replica that restarts with the gang, and return when the controller knows that it is gone (ns).

        It stays stopped until `let_start`. The time is `now` if it does not run.
        """
        replica, node = self.replicas[index], self.seats.node_of[index]
        was_up = replica.phase == "running"
        self._turn(index, "stopping")
        return self._stopped_by(replica, node, now) if was_up and node is not None else now

    def let_start(self, index: int) -> None:
        """Let a replica start again after `stop`, once all of its incident is gone; nothing if it is not stopped."""
        if self.replicas[index].phase == "stopping":
            self._turn(index, "waiting")

    # Starts.

    def admit(self, now: int) -> None:
        """Give seats to the minimum of the role, which may start later, and start the replicas that may start now (R2).

        Called once, when the first nodes have joined.
        """
        self.seats.fill(now, self._missing)
        self.settle(now)

    def settle(self, now: int) -> None:
        """Give free seats to the replicas that wait, and start those that may start.

        Called whenever something has changed that they may have waited for. It also notes which replicas have started
        since, and whether the role has succeeded. Nothing starts once the role or the job is over.
        """
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
        """Return whether the role's gate on the gang is open: it has none, or all members of the gang run."""
        return not self.role.gates or self._job.is_started(now)

    def _note_minimum(self, now: int) -> None:
        """Schedule the failure of the job for a role below its minimum (R12), or cancel it for one that is not."""
        if self._missing <= 0:
            self._give_up_at = None
        elif self._give_up_at is None:
            self._give_up_at = now + self.role.pending_timeout_ns
            self._job.at(self._give_up_at, self._give_up)

    def _give_up(self, now: int) -> None:
        """Fail the job if the role has been below its minimum for all of `pending_timeout` (R12)."""
        if self._give_up_at != now or self._is_over:
            return
        self._give_up_at = None  # if the role waits for the gang by now, its time below the minimum begins anew later
        if self._may_start(now) and self._missing > 0:
            waited = format_duration(self.role.pending_timeout_ns)
            fail(self._job, f"{self.role.name} was below its minimum for {waited}", now)

    def _plan(self, replica: AuxiliaryReplica, at: int, action: Callable[[int], None]) -> None:
        """Schedule an action of the replica, which does not happen if its phase changes before."""
        turn = replica.turn
        self._job.at(at, lambda now: action(now) if replica.turn == turn else None)

    def _open(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """Begin a new generation of the replica: its agent opens the store, and then it is started."""
        self._turn(index, "opening")
        replica.generation += 1
        node = self.seats.node_of[index]
        assert node is not None
        opened = self._job.told(node, now) + self._job.times.open
        self._plan(replica, opened, lambda at: self._start(index, replica, at))

    def _start(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """Order the replica to start, because its store is open; nothing if its agent died before it reported that."""
        job, node, load = self._job, self.seats.node_of[index], self.role.workload
        assert node is not None
        is_dead = not job.alive[node]
        if is_dead and job.dead_since[node] < now - job.times.message:
            return
        self._turn(index, "running")
        replica.ordered = told = job.told(node, now)
        replica.attempt += 1
        replica.books.start(1, 0, now)
        if is_dead:
            return
        replica.formed = told + job.times.started
        entity = f"{ReplicaId(self.role.name, index)}#{replica.attempt}"
        is_warm = self._warm.split([node], told + job.times.up)[1] > 0
        nominal_ns = load.warm_startup_ns if is_warm and load.warm_startup_ns is not None else load.startup_ns
        startup = round(nominal_ns * spread(job.seed, entity, "startup", load.startup_spread))
        up = told + job.times.up + startup + (replica.books.restore_ns if replica.books.durable else 0)
        self._plan(replica, up, lambda at: self._begin(index, replica, at))

    def _begin(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """Begin the work of a task that has started up, or the service of a replica that the gang depends on."""
        if self.role.kind == "task":
            entity = f"{ReplicaId(self.role.name, index)}#{replica.attempt}"
            pace = pace_of(self.role.workload, self.role.procs, self._job.seed, entity, 0)
            self._plan(replica, replica.books.begin(now, pace=pace), lambda at: self._complete(index, replica, at))
        elif self.gate is not None:
            if not self._restarts_gang:
                self._serving[index] = None
                self._away.pop(index, None)
                resume(self._job, self._name(index), now)
            replica.ready = now + self._job.times.message
            self._plan(replica, replica.ready, self._job.companions.settle)

    def _complete(self, index: int, replica: AuxiliaryReplica, now: int) -> None:
        """End the work of a task's replica, which is done. The controller learns of it unless the node is cut off."""
        replica.turn += 1
        replica.books.halt(now, done=True)
        node = self.seats.node_of[index]
        if node is not None and self._job.alive[node]:
            self._job.at(now + self._job.times.message, lambda at: self._succeed(index, at))

    def _succeed(self, index: int, now: int) -> None:
        """Handle the report that the work of a replica is done: free its seat."""
        self._turn(index, "over")
        self._succeeded += 1
        self.seats.release(index)
        self._job.companions.settle(now)

    def _note_success(self) -> None:
        """Mark the role as over if a replica has succeeded, none has a seat, and the minimum is reached.

        Replicas that never got a seat are not needed then.
        """
        if self._succeeded and self._missing <= 0 and not self.seats.taken:
            self._is_over = True

    # The end of the job.

    def end(self, now: int) -> int:
        """Order all replicas to stop at the end of the job, and return when the last of them has ended (ns).

        The time is `now` if none runs.
        """
        job, last = self._job, now
        for index, replica in enumerate(self.replicas):
            node = self.seats.node_of[index]
            if node is None or replica.phase != "running":
                continue
            known = self._stopped_by(replica, node, now)
            last = max(last, known)
            if job.alive[node]:
                replica.books.halt(known - job.times.message, is_over=True)
        return last

    def serves_until(self, now: int) -> int:
        """Return when the first replica that serves the gang ends, if all are ordered to stop now (ns); NEVER: none."""
        served = [(self.replicas[index], self.seats.node_of[index]) for index in self._serving]
        ends = [self._stopped_by(replica, node, now) for replica, node in served if node is not None]
        return min(ends) - self._job.times.message if ends else NEVER

    def _stopped_by(self, replica: AuxiliaryReplica, node: int, now: int) -> int:
        """Return when, in ns, the controller learns that a replica has ended, if it orders the replica to stop now.

        A start in progress is finished first, and an agent that is cut off gets the order once it is connected again.
        On a dead node the time is that at which the death becomes known, or `now` if it is known.
        """
        job, times = self._job, self._job.times
        if not job.alive[node]:
            return job.death_known_at.get(node, now)
        told = max(now, job.connected_at[node] + times.message) if node in job.cut_off_since else now
        spawned = replica.ordered + times.started - times.message
        return max(told + times.message, spawned) + self.role.workload.stop_ns + times.message

    def close(self, now: int) -> None:
        """End the work of all replicas, and write generation and saved step of each into `MacroResult.beside`."""
        for index, replica in enumerate(self.replicas):
            replica.books.halt(now, is_over=True)
            self._job.result.beside[self._name(index)] = (replica.generation, replica.books.durable)
