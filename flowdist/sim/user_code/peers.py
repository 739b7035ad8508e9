"""The addresses that `ctx.peers` of a model returns: those of the roles that the model's own role depends on."""

from __future__ import annotations

from flowdist.control.job.state import JobState
from flowdist.worker.api import peers_among


def addresses_of(job: JobState, caller: str, role: str, port: str) -> list[str]:
    """Return an address that `ctx.call` takes, such as `ps/0:store`, for each replica that has a node, by index.

    Args:
        job: The state of the job.
        caller: The role whose model asks. Only roles that it has a gate on have addresses, as in a real run.
        role: The role whose addresses are wanted.
        port: The name of one of its `ports`.

    Raises:
        RuntimeError: as `flowdist.worker.peers`, if the caller depends on no such role with such a port.
    """
    upstream = [job.roles[gate.role] for gate in job.roles[caller].spec.gates]
    known = {
        f"{other.spec.name}:{name}": [f"{replica.id}:{name}" for replica in job.replicas_of(other) if replica.node]
        for other in upstream
        for name in other.spec.ports
    }
    return peers_among(known, role, port)
