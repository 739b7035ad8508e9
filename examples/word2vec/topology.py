"""word2vec with parameter servers: trainers push and pull rows, servers checkpoint, an evaluator looks on.

    flowdist run examples/word2vec/topology.py --fail ps/0@20s --fail trainer/1@30s
    flowdist simulate examples/word2vec/topology.py --fail ps/0@20s

A server that is killed comes back from its checkpoint, at the same port; the trainers wait for it and go on
(`on_restart="reconnect"`). Write "restart" instead, and they are restarted with it: `flowdist plan` shows what changes.
"""

from flowdist import Restart, Topology, Workload


def topology(servers: int = 2, trainers: int = 2, steps: int = 4000, checkpoint_every: float = 3.0) -> Topology:
    t = Topology("word2vec")
    ps = t.role(
        "ps",
        ["python", "ps.py", "--servers", str(servers), "--checkpoint-every", str(checkpoint_every)],
        kind="service",
        replicas=servers,
        cpu=0.25,
        ports=["rpc"],
        ready_when="tcp:rpc",
        state="checkpoint",
        restart=Restart("replica", max_restarts=3, within="1h"),
        env={"OPENBLAS_NUM_THREADS": "1"},
    )
    trainer = t.role(
        "trainer",
        ["python", "train.py", "--steps", str(steps)],
        replicas=f"1:{trainers}",
        gang=False,
        cpu=0.5,
        depends_on=[ps.ready(on_restart="reconnect")],
        restart=Restart("replica", max_restarts=5, within="1h"),
        env={"OPENBLAS_NUM_THREADS": "1"},
        workload=Workload(steps=steps, step_time="30ms", startup="2s", checkpoint_every="3s", checkpoint_time="0s"),
    )
    t.role(
        "evaluator",
        ["python", "evaluate.py"],
        cpu=0.25,
        primary=False,
        depends_on=[ps.ready(), trainer.started()],
        restart=Restart("replica", max_restarts=5, then="ignore"),
        env={"OPENBLAS_NUM_THREADS": "1"},
        workload=Workload(steps=100_000),
    )
    return t
