"""Who is told which address.

A role's address list is known when every replica with a seat has its ports. Dependents that took an address in their
command line or environment cannot follow a change: they are restarted; the others are told (R5).
"""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.incidents.closure import closure
from flowdist.control.incidents.recovery import open_incident
from flowdist.control.job.facts import FREE
from flowdist.control.job.state import JobState, Replica, Role
from flowdist.control.protocol.effects import TellPeers
from flowdist.control.protocol.ids import Addresses


def addresses_for(job: JobState, role: Role) -> Addresses:
    """What replicas of `role` may know: every port of every role that it has a gate on, as far as known."""
    return tuple(
        (f"{gate.role}:{port}", address)
        for gate in role.spec.gates
        for port, address in job.roles[gate.role].addresses.items()
    )


def update_addresses(job: JobState, roles: Iterable[Role]) -> None:
    """Renew the lists from the seats, and tell or restart those who depend on one that has changed."""
    for role in roles:
        if not role.spec.ports or not role.stale or role.portless or not role.seats:
            continue
        role.stale = False
        found = _address_list(job, role)
        if found != role.addresses:
            role.addresses = found
            for name, gate in role.dependents:
                dependent = job.roles[name]
                baked_in = role.spec.name in dependent.spec.address_edges and gate.on_restart == "reconnect"
                _announce_change(job, dependent, role, baked_in)


def _address_list(job: JobState, role: Role) -> dict[str, str]:
    """By port, all replicas in order, comma separated."""
    seats = [replica for replica in job.replicas_of(role) if replica.node is not None]
    return {port: ",".join(_address(job, replica, port) for replica in seats) for port in role.spec.ports}


def _address(job: JobState, replica: Replica, port: str) -> str:
    assert replica.node is not None
    return f"{job.nodes[replica.node].address}:{dict(replica.ports).get(port, 0)}"


def _announce_change(job: JobState, dependent: Role, changed: Role, baked_in: bool) -> None:
    current = addresses_for(job, dependent)
    stale: list[Replica] = []
    for replica in job.replicas_of(dependent):
        if not replica.is_up or replica.known_addresses == current:
            continue
        if baked_in and _moved(replica.known_addresses, current, changed.spec.name):
            stale.append(replica)
            continue
        tell_peers(job, replica, current)
    if stale:
        reason = f"the address of {changed.spec.name} changed, which {dependent.spec.name} has in its command or env"
        worlds = closure(job, [replica.world for replica in stale])
        open_incident(job, "address_changed", changed.spec.name, reason, FREE, worlds)


def tell_peers(job: JobState, replica: Replica, addresses: Addresses) -> None:
    assert replica.node is not None
    replica.known_addresses = addresses
    job.emit(TellPeers(replica.node, replica.id, replica.attempt, addresses))


def _moved(told: Addresses, current: Addresses, role: str) -> bool:
    """Whether an address that was told before is another now; one that is new harms nobody."""
    now = dict(current)
    return any(now.get(key) != address for key, address in told if key.startswith(f"{role}:"))
