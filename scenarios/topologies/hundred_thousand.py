"""A hundred thousand GPUs: one gang on 12,500 nodes of eight, with spare nodes, for weeks.

flowdist simulate scenarios/topologies/hundred_thousand.py --macro --rate node-kill=6.5e-3/node-day/4h --until 30d
"""

from flowdist import Node, Restart, Topology, Workload


def topology(
    nodes: int = 12_500, spares: int = 100, least: int = 12_000, days: int = 60, checkpoint_every: str = "10m"
) -> Topology:
    t = Topology("hundred-thousand", nodes=(nodes + spares) * [Node(cpu=64, gpu=8, memory="1TiB")])
    t.role(
        "trainer",
        "sleep inf",
        replicas=f"{least}:{nodes}",
        gpu=8,
        cpu=32,
        restart=Restart("role", max_restarts=50, within="1d"),
        workload=Workload(
            steps=days * 8_640,
            step_time="10s",
            startup="3m",
            checkpoint_every=checkpoint_every,
            checkpoint_time="20s",
            restore_time="1m",
        ),
    )
    return t
