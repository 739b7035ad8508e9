"""One elastic gang, each replica as large as a node."""

from flowdist import Node, Restart, Topology, Workload


def topology(replicas: str = "2:4", nodes: int = 4, max_restarts: int = 3, pending_timeout: str = "10m") -> Topology:
    t = Topology("gang", nodes=nodes * [Node(cpu=1)])
    t.role(
        "trainer",
        "sleep inf",
        replicas=replicas,
        pending_timeout=pending_timeout,
        restart=Restart("role", max_restarts=max_restarts) if max_restarts else None,
        workload=Workload(steps=600, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s"),
    )
    return t
