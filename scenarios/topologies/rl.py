"""A learner, rollout actors that need its weights, a reward service, a replay buffer, and an evaluator."""

from flowdist import Node, Restart, Topology, Workload


def topology(max_staleness: int = 1, actors: int = 4, steps: int = 300) -> Topology:
    t = Topology("rl", nodes=3 * [Node(cpu=4)])
    again = Restart("replica", max_restarts=5, within="1h")
    reward = t.role("reward", "sleep inf", kind="service", ports=["rpc"], ready_when="tcp:rpc", restart=again)
    replay = t.role("replay", "sleep inf", kind="service", ports=["rpc"], ready_when="tcp:rpc", restart=again)
    learner = t.role(
        "learner",
        "sleep inf",
        replicas=2,
        depends_on=[replay.ready()],
        restart=Restart("role", max_restarts=2),
        state="checkpoint",
        workload=Workload(steps=steps, step_time="1s", startup="5s", checkpoint_every="20s", checkpoint_time="500ms"),
    )
    actor = t.role(
        "actor",
        "sleep inf",
        replicas=actors,
        gang=False,
        primary=False,
        depends_on=[replay.started(), reward.started()],
        versions=learner.version(max_staleness=max_staleness),
        restart=again,
        workload=Workload(steps=100_000, step_time="1s", startup="2s"),
    )
    t.role(
        "evaluator",
        "sleep inf",
        primary=False,
        depends_on=[actor.ready()],
        restart=Restart(max_restarts=1, then="ignore"),
        workload=Workload(steps=100_000),
    )
    return t
