"""Four ranks of sharded.py, whose shards are on two of three nodes each."""

from flowdist import Node, Restart, Snapshots, Topology

t = Topology("sharded", nodes=3 * [Node(cpu=2)])
again, kept = Restart("role", max_restarts=3), Snapshots(copies=2, every=1)
t.role("trainer", ["python", "sharded.py", "out"], replicas=4, cpu=1, restart=again, snapshots=kept)
