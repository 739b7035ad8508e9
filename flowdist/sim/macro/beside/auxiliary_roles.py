"""All roles beside the gang, in macro mode: which lack room, what the gang waits for, what it restarts with.

A service that the gang depends on with `on_restart="restart"` restarts the gang: the loss of one of its replicas is one
incident of both. The replica and the gang stop, then the service gets ready, then the gang forms (R5, R6). Until the
gang runs again the incident is open, and each further loss makes all of it start anew. With `on_restart="reconnect"`
the gang makes no step for as long as the service is away.
"""

from __future__ import annotations

from functools import partial

from flowdist.sim.macro.beside.auxiliary_role import AuxiliaryRole
from flowdist.sim.macro.gang import note_change, open_incident, stopped, take_room
from flowdist.sim.macro.generation.waiting import give_up_waiting
from flowdist.sim.macro.job import Job


class AuxiliaryRoles:
    """All auxiliary roles of a job, and the incidents that they share with the gang. Implements `job.Companions`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.roles = [AuxiliaryRole(job, role, room) for role, room in job.scope.beside]
        for role in self.roles:
            role.seats.others_have_room = lambda role=role: not self._lack_room(role)  # type: ignore[misc]
        job.seats.others_have_room = lambda: not self._lack_room(None)
        self._upstream = [role for role in self.roles if role.gate is not None]
        self._joint: dict[tuple[str, int], AuxiliaryRole] = {}  # replicas in the open incident of the gang

    def _lack_room(self, asker: AuxiliaryRole | None) -> bool:
        """Return whether a role other than the asker (None: the gang) is below its minimum without room (R22)."""
        job = self._job
        if asker is not None and job.seats.taken + job.seats.free < job.role.min_replicas:
            return True
        return any(role is not asker and role.is_short for role in self.roles)

    @property
    def are_settled(self) -> bool:
        """Return whether `SteadyState` may compute generations of the gang without regard to these roles.

        All services that the gang depends on are up, and a new generation of the gang changes nothing for any role.
        """
        waits = self._joint or self._job.away or not self._job.books.is_even
        return not waits and all(role.is_settled for role in self.roles)

    def let_gang_form(self, now: int) -> bool:
        """Return whether all gates of the gang are open: each role has started, or is ready if so required (R1)."""
        return all(role.lets_gang_form(now) for role in self._upstream)

    def admit(self, now: int) -> None:
        """Give seats to the minimum of each role when the first nodes have joined (R2). Called once."""
        for role in self.roles:
            role.admit(now)

    def add_node(self, node: int, now: int) -> None:
        """Offer the seats of a node that joined to all roles; `settle` gives them to replicas."""
        for role in self.roles:
            role.seats.join(node, now)

    def end_workers(self, node: int, at: int) -> None:
        """Schedule the end of all replicas' work on a node that has died: it ends at the time `at`."""
        for role in self.roles:
            role.end_workers(node, at)

    def lose_node(self, node: int, reason: str, now: int) -> None:
        """Handle that the controller learns that a node is lost: restart its replicas, and the gang if it has to."""
        for role in self.roles:
            for replica in role.lose_node(node, reason, now):
                self._restart_gang(role, replica, reason, now)

    def settle(self, now: int) -> None:
        """Let all roles and the gang start, form or grow where that is possible by now.

        Called whenever seats were lost or became free, or a replica started or ended. Nothing happens without auxiliary
        roles, or once the job has an outcome.
        """
        job = self._job
        if not self.roles or job.result.outcome is not None:
            return
        if job.is_started(now):
            self._joint.clear()
        if job.phase == "running" or not self._upstream:
            take_room(job, now)
        for role in self.roles:
            role.settle(now)
        take_room(job, now)  # again, as the gang may have waited for one of the roles
        for role in self._upstream:
            role.release_gang(now)

    # Incidents of the gang and of what it depends on.

    def _restart_gang(self, role: AuxiliaryRole, replica: int, reason: str, now: int) -> None:
        """Restart the gang because a replica that it depends on was up and is lost: open an incident of both.

        If the gang is being restarted already, all of that incident stops and starts anew.
        """
        job = self._job
        self._joint[role.role.name, replica] = role
        if job.phase in ("opening", "running"):
            open_incident(job, "node_lost", reason, now, steps_on=job.phase == "running")
            return
        job.note_incident("node_lost", reason, now)
        job.joint_gone_at = self.stop(now)
        job.due = max(job.due if job.phase == "stopping" else now, job.joint_gone_at)
        job.phase, job.on_due = "stopping", stopped
        if job.give_up_at is not None:
            job.at(job.give_up_at, partial(give_up_waiting, job))
        note_change(job, "node_lost", reason, now)

    def stop(self, now: int) -> int:
        """Stop all replicas in the gang's open incident, and return when the last of them is gone (ns).

        Each counts one more membership change. The time is `now` without such replicas.
        """
        ends = now
        for (_, replica), role in self._joint.items():
            ends = max(ends, role.stop(replica, now))
            role.note_change(replica, f"{role.role.name}/{replica} was lost", now)
        return ends

    def start(self, now: int) -> None:
        """Let the replicas in the gang's open incident start again, since everything in it has stopped.

        The gang forms only when its gates are open, so these replicas start first.
        """
        for (_, replica), role in self._joint.items():
            role.let_start(replica)
        for role in self.roles:
            role.settle(now)

    # The end of the job.

    def end_in_order(self, now: int) -> int:
        """Stop the roles one after the other, dependents first, and return when the last replica has ended (ns)."""
        for depth in (2, 1, 0):
            now = max([now, *(role.end(now) for role in self.roles if role.depth == depth)])
        return now

    def end_at_once(self, now: int) -> int:
        """Stop all roles now, and return when the last replica has ended (ns)."""
        return max([now, *(role.end(now) for role in self.roles)])

    def close(self, now: int) -> None:
        """Write cordoned nodes, generations and saved steps of every auxiliary role into the result, at `now` (ns)."""
        for role in self.roles:
            self._job.result.cordoned += [self._job.scope.nodes[node] for node in role.seats.cordoned]
            role.close(now)
