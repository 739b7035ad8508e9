"""Actors, each for itself, on three nodes with room to move."""

from flowdist import Node, Restart, Topology, Workload

t = Topology("actors", nodes=3 * [Node(cpu=4)])
t.role(
    "actor",
    "sleep inf",
    replicas=4,
    gang=False,
    restart=Restart("replica", max_restarts=10),
    workload=Workload(steps=900),
)
