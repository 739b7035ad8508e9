"""Trainers, parameter servers and an evaluator on four nodes: what most scenarios are about."""

from flowdist import Node, On, Restart, Topology, Workload


def topology(
    on_restart: str = "restart",
    trainers: str = "2:4",
    max_restarts: int = 3,
    evaluators: int = 1,
    nodes: int = 4,
    steps: int = 600,
) -> Topology:
    t = Topology("ps-train", nodes=nodes * [Node(cpu=4)])
    ps = t.role(
        "ps",
        "sleep inf",
        kind="service",
        replicas=2,
        ports=["rpc"],
        ready_when="tcp:rpc",
        state="checkpoint",
        restart=Restart("replica", max_restarts=3, within="1h"),
    )
    trainer = t.role(
        "trainer",
        "sleep inf",
        replicas=trainers,
        cpu=2,
        depends_on=[ps.ready(on_restart=on_restart)],
        restart=Restart("role", max_restarts=max_restarts, within="1h", rules=[On("oom", do="fail")]),
        workload=Workload(steps=steps, step_time="1s", startup="5s", checkpoint_every="1m", checkpoint_time="1s"),
    )
    t.role(
        "evaluator",
        "sleep inf",
        replicas=evaluators,
        gang=False,
        primary=False,
        depends_on=[trainer.started()],
        restart=Restart("replica", max_restarts=1, then="ignore"),
        workload=Workload(steps=10_000),
    )
    return t
