"""A gang, an evaluator and readers, each on nodes of its own: what macro mode plays beside a gang."""

from flowdist import Node, Restart, Topology, Workload


def topology(
    replicas: str = "2:4",
    nodes: int = 4,
    evaluators: str = "1",
    evaluator_nodes: int = 1,
    readers: str = "0",
    reader_nodes: int = 2,
    on_restart: str = "",
    steps: int = 600,
    max_restarts: int = 3,
    pending_timeout: str = "10m",
) -> Topology:
    pools = {"train": nodes, "eval": evaluator_nodes, "read": reader_nodes if readers != "0" else 0}
    t = Topology("pools", nodes=[node for pool in pools for node in pools[pool] * [Node(cpu=1, labels={"pool": pool})]])
    needed = []
    if readers != "0":
        reader = t.role(
            "reader",
            "sleep inf",
            kind="service",
            ready_when="call",
            state="checkpoint",
            replicas=readers,
            where={"pool": "read"},
            restart=Restart("replica", max_restarts=3),
            pending_timeout=pending_timeout,
        )
        needed = [reader.ready(on_restart=on_restart)] if on_restart else []
    trainer = t.role(
        "trainer",
        "sleep inf",
        replicas=replicas,
        where={"pool": "train"},
        depends_on=needed,
        restart=Restart("role", max_restarts=max_restarts),
        pending_timeout=pending_timeout,
        workload=Workload(steps=steps, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s"),
    )
    t.role(
        "evaluator",
        "sleep inf",
        replicas=evaluators,
        gang=False,
        primary=False,
        where={"pool": "eval"},
        depends_on=[trainer.started()],
        restart=Restart("replica", max_restarts=1, then="ignore"),
        pending_timeout=pending_timeout,
        workload=Workload(steps=steps // 3, checkpoint_every="30s"),
    )
    return t
