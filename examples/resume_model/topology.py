"""Two or three workers whose resume logic is tested in simulation, by the class that they run for real.

flowdist simulate examples/resume_model/topology.py --explore 300
flowdist run examples/resume_model/topology.py --fail trainer/1@checkpoint=trainer,1
"""

from flowdist import Node, Restart, Topology, Workload


def topology(steps: int = 60, model: str = "model:Worker") -> Topology:
    t = Topology("resume-model", nodes=3 * [Node(cpu=1)])
    t.role(
        "trainer",
        ["python", "train.py", "--steps", str(steps)],
        replicas="2:3",
        cpu=1,
        restart=Restart("role", max_restarts=5, within="1h"),
        simulate=model,
        workload=Workload(
            steps=steps, step_time="1s", startup="3s", checkpoint_every="10s", checkpoint_time="4s", restore_time="1s"
        ),
    )
    return t
