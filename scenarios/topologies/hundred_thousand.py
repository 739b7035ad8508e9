"""A hundred thousand GPUs: one gang on 12,500 nodes of eight, with spare nodes, for weeks.

flowdist simulate scenarios/topologies/hundred_thousand.py --macro --rate node-kill=6.5e-3/node-day/4h --until 30d

With `-p readers=200 -p evaluators=4` there are readers that it waits for and evaluators, on nodes without GPUs. Macro
mode does not play these; simulate a few hours of them without --macro.
"""

from flowdist import Node, Restart, Topology, Workload


def topology(
    nodes: int = 12_500,
    spares: int = 100,
    least: int = 12_000,
    days: int = 60,
    checkpoint_every: str = "10m",
    readers: int = 0,
    evaluators: int = 0,
) -> Topology:
    machines = (nodes + spares) * [Node(cpu=64, gpu=8, memory="1TiB")]
    for pool, many in (("readers", readers), ("evaluators", evaluators)):
        machines += (many + bool(many)) * [Node(cpu=64, memory="256GiB", labels={"pool": pool})]
    t = Topology("hundred-thousand", nodes=machines)
    needed = []
    if readers:
        reader = t.role(
            "reader",
            "sleep inf",
            kind="service",
            replicas=f"{readers * 9 // 10}:{readers}",
            cpu=64,
            where={"pool": "readers"},
            pending_timeout="1d",
        )
        needed = [reader.started()]
    trainer = t.role(
        "trainer",
        "sleep inf",
        replicas=f"{least}:{nodes}",
        gpu=8,
        cpu=32,
        depends_on=needed,
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
    if evaluators:
        t.role(
            "evaluator",
            "sleep inf",
            replicas=f"1:{evaluators}",
            cpu=64,
            gang=False,
            primary=False,
            where={"pool": "evaluators"},
            depends_on=[trainer.started()],
            restart=Restart("replica", max_restarts=5, then="ignore"),
            pending_timeout="1d",
            workload=Workload(steps=days * 1_440, step_time="1m", checkpoint_every="1h"),
        )
    return t
