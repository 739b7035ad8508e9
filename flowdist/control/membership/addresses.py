"""Address lists of roles, and how a change of them reaches the dependents (R5).

The address list of a role is known once every replica with a seat has its ports. Dependents that have an address in
their command line or environment cannot follow a change, so they restart. The others get the new list in `TellPeers`.
"""

from __future__ import annotations

from collections.abc import Iterable

from flowdist.control.incidents.recovery import open_incident
from flowdist.control.incidents.restart_set import closure
from flowdist.control.job.facts import FREE
from flowdist.control.job.state import JobState, Replica, Role
from flowdist.control.placement.placement import seated
from flowdist.control.protocol.effects import TellPeers
from flowdist.control.protocol.ids import Addresses


def addresses_for(job: JobState, role: Role) -> Addresses:
    """Return the addresses that `role` may use: ("ps:rpc", "host:port,host:port") for each port of each upstream role.

    Only roles that `role` has a gate on count. Ports whose addresses are not known yet are left out.
    """
    return tuple(
        (f"{gate.role}:{port}", address)
        for gate in role.spec.gates
        for port, address in job.roles[gate.role].addresses.items()
    )


def update_addresses(job: JobState, roles: Iterable[Role]) -> None:
    """Recompute the address lists of these roles, and send each list that differs to the role's dependents (R5).

    Dependents that cannot follow a change restart instead. A role is skipped if neither its seats nor its ports have
    changed, or while a replica with a seat has not reported its ports.
    """
    for role in roles:
        if not role.spec.ports or not role.stale or role.portless or not role.seats:
            continue
        role.stale = False
        seats = seated(job, role)
        found = {port: ",".join(_address(job, replica, port) for replica in seats) for port in role.spec.ports}
        if found != role.addresses:
            role.addresses = found
            for name, _ in role.dependents:
                _announce_change(job, job.roles[name], role)


def _address(job: JobState, replica: Replica, port: str) -> str:
    assert replica.node is not None
    address = job.nodes[replica.node].address
    host = f"[{address}]" if ":" in address else address  # IPv6
    return f"{host}:{dict(replica.ports).get(port, 0)}"


def _announce_change(job: JobState, dependent: Role, changed: Role) -> None:
    """Send its new addresses to each running replica of `dependent`, or restart the replicas that cannot follow.

    A replica cannot follow if an address of `changed` in its command line or environment has changed or is gone.
    Replicas that have these addresses already are left alone. All restarts are one incident, with their restart set.
    """
    baked_in = changed.spec.name in dependent.spec.address_edges
    current = addresses_for(job, dependent)
    stale: list[Replica] = []
    for replica in job.replicas_of(dependent):
        if not replica.is_up or replica.known_addresses == current:
            continue
        if baked_in and _moved(replica.known_addresses, current, changed.spec.name):
            stale.append(replica)
            continue
        assert replica.node is not None
        replica.known_addresses = current
        job.emit(TellPeers(replica.node, replica.id, replica.attempt, current))
    if stale:
        reason = f"the address of {changed.spec.name} changed, which {dependent.spec.name} has in its command or env"
        worlds = closure(job, [replica.world for replica in stale])
        open_incident(job, "address_changed", changed.spec.name, reason, FREE, worlds)


def _moved(told: Addresses, current: Addresses, role: str) -> bool:
    """Return whether an address of `role` that was `told` is missing from `current` or differs there."""
    now = dict(current)
    return any(now.get(key) != address for key, address in told if key.startswith(f"{role}:"))
