"""Trainers and parameter servers in one world, with zones, a wider restart and an eye on hangs."""

from flowdist import Node, Restart, Topology, Workload

t = Topology("core-job", nodes=[Node(cpu=4, labels={"zone": "ab"[i % 2]}) for i in range(4)])
work = Workload(steps=600, checkpoint_every="1m")
ps = t.role("ps", "sleep inf", replicas=2, apart=True, hang_after="30s", workload=work)
trainer = t.role(
    "trainer",
    "sleep inf",
    replicas="2:4",
    cpu=2,
    hang_after="30s",
    restart=Restart("role", max_restarts=1, then=Restart("job", max_restarts=1)),
    workload=work,
)
t.world("core", ps, trainer)
t.role("logger", "sleep inf", kind="service", where={"zone": "b"})
