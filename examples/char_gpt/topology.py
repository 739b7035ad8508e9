"""A character GPT on one to four workers: it shrinks when one is lost and goes on from its last checkpoint.

flowdist run examples/char_gpt/topology.py --fail trainer/1@step=trainer,120
flowdist run examples/char_gpt/topology.py --nodes 2 --set trainer.replicas=1:2 --fail node1@40s/20s
"""

from flowdist import Restart, Topology, Workload


def topology(trainers: str = "1:4", steps: int = 300, every: int = 50) -> Topology:
    t = Topology("char-gpt")
    t.role(
        "trainer",
        ["python", "train.py", "--steps", str(steps), "--checkpoint-every", str(every)],
        replicas=trainers,
        cpu=0.5,
        state="checkpoint",
        restart=Restart("role", max_restarts=5, within="1h"),
        env={"OMP_NUM_THREADS": "1"},
        workload=Workload(steps=steps, step_time="120ms", startup="6s", checkpoint_every="6s", checkpoint_time="200ms"),
    )
    return t
