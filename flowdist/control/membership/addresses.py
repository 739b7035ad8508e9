"""Address lists of roles, and how a change of them reaches the dependents (R5).

The address list of a role is known once every replica with a seat has its ports. Dependents that have an address in
their command line or environment cannot follow a change, so they restart. The others get the new list in `TellPeers`.
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
    """Return the known addresses of every port of every role that `role` has a gate on."""
    return tuple(
        (f"{gate.role}:{port}", address)
        for gate in role.spec.gates
        for port, address in job.roles[gate.role].addresses.items()
    )


def update_addresses(job: JobState, roles: Iterable[Role]) -> None:
    """Renew the address lists of these roles; inform or restart the dependents of each list that has changed (R5)."""
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
    """Return, by port, the addresses of all replicas with a seat, in order of their indexes, separated by commas."""
    seats = [replica for replica in job.replicas_of(role) if replica.node is not None]
    return {port: ",".join(_address(job, replica, port) for replica in seats) for port in role.spec.ports}


def _address(job: JobState, replica: Replica, port: str) -> str:
    assert replica.node is not None
    return f"{job.nodes[replica.node].address}:{dict(replica.ports).get(port, 0)}"


def _announce_change(job: JobState, dependent: Role, changed: Role, baked_in: bool) -> None:
    """Send the current addresses to the replicas of `dependent`; restart those that cannot follow the change.

    Args:
        job: The state.
        dependent: The role that depends on `changed`.
        changed: The role whose addresses have changed.
        baked_in: The replicas of `dependent` have addresses of `changed` in their command line or environment.
    """
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
    """Order the agent of the replica to send these addresses to its workers."""
    assert replica.node is not None
    replica.known_addresses = addresses
    job.emit(TellPeers(replica.node, replica.id, replica.attempt, addresses))


def _moved(told: Addresses, current: Addresses, role: str) -> bool:
    """Return whether an address of the role in `told` has changed or is missing. A new address needs no restart."""
    now = dict(current)
    return any(now.get(key) != address for key, address in told if key.startswith(f"{role}:"))
