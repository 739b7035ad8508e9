"""Resume logic with a bug each, beside two that have none: what a campaign has to tell apart.

All but the parameter server are the worker of examples/resume_model with one thing wrong.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

SPEC = importlib.util.spec_from_file_location(
    "resume_model", Path(__file__).parents[2] / "examples/resume_model/model.py"
)
example: Any = importlib.util.module_from_spec(SPEC)  # type: ignore[arg-type]
SPEC.loader.exec_module(example)  # type: ignore[union-attr]


class Correct(example.Worker):
    pass


class Trusting(example.Worker):
    """Reads what was committed and nothing else: right, as long as nothing happens to files that were whole."""

    tolerates = ()

    def restore(self):
        return self.load(self.ctx.latest()) if self.ctx.latest() is not None else 0


class ForgottenOptimizer(example.Worker):
    def load(self, name):
        step = super().load(name)
        self.momentum = [0.0] * len(self.momentum)
        return step


class DataOffByOne(example.Worker):
    def load(self, name):
        step = super().load(name)
        self.position += 1
        return step


class NewestNameAsText(Trusting):
    """Reads the last name of all: step 50 after step 250, once the steps have three digits."""

    def prefix(self, step):
        return f"step-{step}-of-{self.ctx.info.generation}"

    def committed(self, step, accepted):
        pass

    def restore(self):
        manifests = [name for name in self.ctx.store.names("step-") if "." not in name]
        return self.load(manifests[-1]) if manifests else 0


class PublishedTooSoon(Trusting):
    """Rank 0 commits when it has written its own part."""

    def checkpoint(self, step):
        super().checkpoint(step)
        super().publish(step)

    def publish(self, step):
        pass


class StaleGenerationWrites(Trusting):
    """Generations share names: one that is over can write into the files of the next."""

    def prefix(self, step):
        return f"step-{step:08}"


class ShardedByWorldSize(example.Worker):
    """Remembers how many batches it has seen, and a batch is as large as there are ranks."""

    def batch(self):
        batches, size = self.position // example.BATCH, 4 * self.size
        return range(batches * size, (batches + 1) * size)


class NoiseNotRestored(example.Worker):
    def load(self, name):
        step = super().load(name)
        self.noise = self.ctx.random("noise", shared=True)
        return step


class LatestOverwritten(Trusting):
    """A pointer of its own, written over in place."""

    def publish(self, step):
        super().publish(step)
        if self.rank == 0:
            self.ctx.store.write("latest", json.dumps({"name": self.prefix(step)}).encode())

    def restore(self):
        if not self.ctx.store.names("latest"):
            return 0
        return self.load(json.loads(self.ctx.store.read("latest"))["name"])


class ScheduleRestarted(example.Worker):
    """The learning rate follows the steps of this process."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.steps_here = 0

    def rate(self, step):
        self.steps_here += 1
        return super().rate(self.steps_here - 1)


class DepartedShardMissing(example.Worker):
    """Reads as many shards as there are ranks now."""

    def load(self, name):
        step = super().load(name)
        for row in self.rows:
            for rank in range(self.size):
                if str(row) in example.unsealed(self.ctx.store.read(f"{name}.{rank}"))["rows"]:
                    break
            else:
                self.rows[row] = 0.0
        return step


class UncheckedRead(example.Worker):
    """Says that it bears a corrupt file, and does not look."""

    def load(self, name):
        checked, example.unsealed = example.unsealed, lambda data: json.loads(data[8:])
        try:
            return super().load(name)
        finally:
            example.unsealed = checked


class StartedOtherwise(example.Worker):
    """Only the first generation draws its weights: a later one that finds no checkpoint begins with zeros."""

    def __init__(self, ctx):
        super().__init__(ctx)
        if ctx.info.generation == 1:
            drawn = ctx.random("weights", shared=True)
            self.weights = [drawn.random() for _ in self.weights]


class EachRankItsOwnLatest(example.Worker):
    """Each rank resumes from the newest file that it wrote itself, committed or not."""

    def restore(self):
        mine = [name for name in self.ctx.store.names("step-") if name.endswith(f".{self.rank}")]
        for name in reversed(mine):
            try:
                example.unsealed(self.ctx.store.read(name))
                return self.load(name.partition(".")[0])
            except ValueError:
                continue
            except FileNotFoundError:
                return int(name[5:13])
        return 0


class Table:
    """A parameter server: `save` and `load` are asked for by the trainers, so that both are at the same step."""

    def __init__(self, ctx):
        self.ctx, self.rows = ctx, [0.0] * 4

    def pull(self):
        return self.rows

    def push(self, gradients):
        self.rows = [row - 0.1 * gradient for row, gradient in zip(self.rows, gradients, strict=True)]

    def save(self, step):
        self.ctx.store.write(f"rows-{step}", json.dumps(self.rows).encode())

    def load(self, step):
        self.rows = json.loads(self.ctx.store.read(f"rows-{step}")) if step else [0.0] * 4

    def state(self):
        return {"rows": self.rows}


class Pushing:
    """A trainer whose parameters live on the server."""

    def __init__(self, ctx):
        self.ctx = ctx

    def server(self, method, *args):
        return self.ctx.call(self.ctx.peers("ps", "rpc")[0], method, *args)

    def restore(self):
        step = int(self.ctx.latest().partition("-")[2]) if self.ctx.latest() else 0
        if self.ctx.info.rank == 0:
            self.roll_back(step)
        return step

    def roll_back(self, step):
        self.server("load", step)

    def step(self, step):
        self.ctx.consume((step, self.ctx.info.rank))
        rows = self.server("pull")
        return [row - (step + i) % 5 for i, row in enumerate(rows)]

    def combine(self, step, parts):
        if self.ctx.info.rank == 0:
            self.server("push", parts[0])
        self.ctx.log(error=sum(abs(value) for value in parts[0]))

    def checkpoint(self, step):
        if self.ctx.info.rank == 0:
            self.server("save", step)

    def publish(self, step):
        if self.ctx.info.rank == 0:
            self.ctx.store.write(f"at-{step}", b"")
            self.ctx.commit(f"at-{step}", step)


class PushedTwice(Pushing):
    """The server is left as it is: what is done again is pushed again."""

    def roll_back(self, step):
        pass
