"""A reader prepares data, then actors work on it, each for itself."""

from flowdist import Node, Restart, Topology, Workload

t = Topology("stages", nodes=2 * [Node(cpu=2)])
reader = t.role("reader", "sleep inf", workload=Workload(steps=30))
actor = t.role(
    "actor",
    "sleep inf",
    replicas=2,
    gang=False,
    depends_on=[reader.succeeded()],
    restart=Restart("replica", max_restarts=2),
    workload=Workload(steps=120, checkpoint_every="30s"),
)
