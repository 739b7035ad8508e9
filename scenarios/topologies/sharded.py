"""A gang of which each rank has a shard of the state, and copies it to the memory of two nodes every 20 steps."""

from flowdist import Node, Restart, Snapshots, Topology, Workload


def topology(copies: int = 2, nodes: int = 4) -> Topology:
    racked = [Node(cpu=1, labels={"rack": f"r{number // 2}"}) for number in range(nodes)]
    t = Topology("sharded", nodes=racked)
    t.role(
        "trainer",
        "sleep inf",
        replicas=f"1:{nodes}",
        snapshots=Snapshots(copies=copies, every=20, apart="rack", size="200MB"),
        restart=Restart(max_restarts=5, within="1h"),
        workload=Workload(steps=600, checkpoint_every="201s", restore_time="30s"),
    )
    return t
