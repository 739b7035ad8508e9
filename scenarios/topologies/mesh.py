"""A gang whose ranks form a mesh: two pipeline stages, and as many copies of them as there is room for."""

from flowdist import Node, Restart, Topology, Workload


def topology(nodes: int = 6) -> Topology:
    t = Topology("mesh", nodes=nodes * [Node(cpu=1)])
    t.role(
        "trainer",
        "sleep inf",
        replicas="2:6",
        parallel={"pp": 2, "dp": "elastic"},
        restart=Restart("role", max_restarts=3),
        workload=Workload(steps=600, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s"),
    )
    return t
