"""Reinforcement learning with roles: a learner, rollout actors, a reward service, a replay buffer, an evaluator.

    flowdist run examples/rl/topology.py --fail actor/0@step=learner,30 --fail reward/0@step=learner,60
    flowdist simulate examples/rl/topology.py --fail actor/0@30s --fail reward/0@1m

Each actor is a failure domain of its own: when one is killed, it comes back, and is ready again when it has fresh
weights of the learner (`versions=`). The learner restarts for none of them.
"""

import importlib.util

from flowdist import Restart, Topology, Workload


def topology(actors: int = 3, learners: int = 0, updates: int = 150, max_staleness: int = 5) -> Topology:
    learners = learners or (2 if importlib.util.find_spec("torch") else 1)
    t = Topology("rl")
    again = Restart("replica", max_restarts=20, within="1h")
    short = Workload(startup="1s", checkpoint_every="5s", checkpoint_time="0s")
    reward, replay = (
        t.role(
            name,
            ["python", f"{name}.py"],
            kind="service",
            cpu=0.1,
            ports=["rpc"],
            ready_when="tcp:rpc",
            restart=again,
            workload=short,
        )
        for name in ("reward", "replay")
    )
    learner = t.role(
        "learner",
        ["python", "learner.py", "--updates", str(updates)],
        replicas=learners,
        cpu=0.4,
        depends_on=[replay.ready()],
        state="checkpoint",
        restart=Restart("role", max_restarts=3),
        env={"OMP_NUM_THREADS": "1"},
        workload=Workload(steps=updates, step_time="500ms", startup="4s", checkpoint_every="5s", checkpoint_time="0s"),
    )
    actor = t.role(
        "actor",
        ["python", "actor.py"],
        replicas=actors,
        cpu=0.2,
        gang=False,
        primary=False,
        depends_on=[reward.ready(), replay.ready()],
        versions=learner.version(max_staleness=max_staleness),
        restart=again,
        workload=Workload(steps=100_000, startup="1s", checkpoint_every="1s", checkpoint_time="0s"),  # nothing is lost
    )
    t.role(
        "evaluator",
        ["python", "evaluate.py"],
        cpu=0.1,
        primary=False,
        depends_on=[actor.ready()],
        restart=Restart("replica", max_restarts=5, then="ignore"),
        workload=Workload(steps=100_000, checkpoint_every="1s", checkpoint_time="0s"),
    )
    return t
