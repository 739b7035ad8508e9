"""Two parameter servers, each with half of the tensors, and two trainers that step together.

    flowdist run ps_topology.py

Whatever is killed, all trainers start again, and servers and trainers go on from the last complete folder below ckpt/.
"""

from flowdist import Restart, Topology

t = Topology("ps")
ps = t.role(
    "ps",
    ["python", "ps_server.py"],
    kind="service",
    replicas=2,
    cpu=0.25,
    ports=["rpc"],
    ready_when="tcp:rpc",
    state="checkpoint",
    restart=Restart("replica", max_restarts=5, within="1h"),
    env={"SERVERS": "2", "OMP_NUM_THREADS": "1"},
)
t.role(
    "trainer",
    ["python", "ps_worker.py"],
    replicas=2,
    cpu=0.5,
    depends_on=[ps.ready(on_restart="restart")],
    state="checkpoint",
    restart=Restart("role", max_restarts=5, within="1h"),
    env={"OMP_NUM_THREADS": "1"},
)
