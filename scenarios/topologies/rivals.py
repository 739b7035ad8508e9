"""Two elastic gangs that both want all four nodes."""

from flowdist import Node, Restart, Topology, Workload

t = Topology("rivals", nodes=4 * [Node(cpu=1)])
work = Workload(steps=300)
blue = t.role("blue", "sleep inf", replicas="2:4", restart=Restart(max_restarts=2), workload=work)
red = t.role("red", "sleep inf", replicas="2:4", restart=Restart(max_restarts=2), workload=work)
