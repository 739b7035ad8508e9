"""Trainers that take their samples from `ctx.samples()`: three or four of them."""

from __future__ import annotations

import json

from flowdist import Node, Restart, Topology, Workload
from flowdist.model import Context


class Worker:
    def __init__(self, ctx: Context) -> None:
        self.ctx, self.total = ctx, 0
        self.samples = ctx.samples(1000, global_batch=24, micro_batch=2, seed=7)

    def restore(self) -> int:
        name = self.ctx.latest()
        if name is None:
            return 0
        step, self.total = json.loads(self.ctx.store.read(name))
        return int(step)

    def step(self, step: int) -> int:
        mine = self.samples.batch(step).samples
        self.ctx.consume(*((step, sample) for sample in mine))
        return sum(mine)

    def combine(self, step: int, parts: list[int]) -> None:
        self.total += sum(parts)

    def publish(self, step: int) -> None:
        if self.ctx.info.rank == 0:
            name = f"{step}-{self.ctx.info.generation}"
            self.ctx.store.write(name, json.dumps([step, self.total]).encode())
            self.ctx.commit(name, step)

    def state(self) -> dict[str, object]:
        return {"total": self.total}


def topology() -> Topology:
    t = Topology("sampled", nodes=4 * [Node(cpu=1)])
    load = Workload(steps=120, step_time="1s", startup="5s", checkpoint_every="20s", checkpoint_time="1s")
    again = Restart("role", max_restarts=3)
    t.role(
        "trainer",
        "sleep inf",
        replicas="3:4",
        cpu=1,
        restart=again,
        workload=load,
        simulate=Worker,
    )
    return t
