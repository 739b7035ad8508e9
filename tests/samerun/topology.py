"""Three or four ranks of trainer.py, one on each node."""

from flowdist import Node, Restart, Topology

t = Topology("same-run", nodes=4 * [Node(cpu=1)])
again = Restart("role", max_restarts=3)
t.role("trainer", ["python", "trainer.py", "out"], replicas="3:4", cpu=1, restart=again, cooldown="100ms")
