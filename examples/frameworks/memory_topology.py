"""Four ranks on three nodes, which hold the state of training in memory. The other files memory_*.py are the scripts.

flowdist run examples/frameworks/memory_topology.py --fail node1@step=trainer,12
flowdist run examples/frameworks/memory_topology.py -p script=memory_trainer.py --fail trainer/1@step=trainer,12
"""

from flowdist import Node, Restart, Snapshots, Topology


def topology(script: str = "memory_hsdp.py", ranks: str = "4", nodes: int = 3) -> Topology:
    t = Topology("memory", nodes=nodes * [Node(cpu=2)])
    t.role(
        "trainer",
        ["python", script],
        replicas=ranks,
        cpu=1,
        restart=Restart("role", max_restarts=3),
        snapshots=Snapshots(copies=2, every=5),
        env={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    return t
