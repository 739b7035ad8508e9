"""A worker that comes back from anything where it was, to the last bit: simulated (`simulate=`) and real (`train.py`).

Linear regression by SGD with momentum and noise. Weights and momentum are on every rank, rows of a table on one rank
each. Who owns a row has the samples that need it. Sums go over samples in their order, so that the number of ranks
changes nothing.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from flowdist.model import Context

SAMPLES, BATCH, WIDTH, ROWS = 10_000, 12, 3, 7
KEPT = 2  # checkpoints: the one before the latest is there when the latest cannot be read

Part = list[tuple[int, float]]  # samples of a batch, each with its error


class Worker:
    tolerates = ("torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint")  # what --explore may do to its files

    def __init__(self, ctx: Context) -> None:
        self.ctx, self.rank, self.size = ctx, ctx.info.role_rank, ctx.info.role_world_size
        self.weights, self.momentum = [0.0] * WIDTH, [0.0] * WIDTH
        self.rows = {row: 0.0 for row in range(ROWS) if self.owns(row)}
        self.position = 0  # in the data
        self.noise = ctx.random("noise", shared=True)

    def owns(self, row: int) -> bool:
        return row % self.size == self.rank

    def step(self, step: int) -> Part:
        """This rank's share of the batch: the errors of its samples."""
        mine = [sample for sample in self.batch() if self.owns(sample % ROWS)]
        self.ctx.consume(*mine)
        return [(sample, self.error(sample)) for sample in mine]

    def batch(self) -> range:
        return range(self.position, min(self.position + BATCH, SAMPLES))

    def error(self, sample: int) -> float:
        x = features(sample)
        wanted = 2 * x[0] - x[1] + (sample % ROWS) / ROWS
        return sum(map(float.__mul__, self.weights, x)) + self.rows[sample % ROWS] - wanted

    def combine(self, step: int, parts: list[Part]) -> None:
        """Every rank has all errors, and takes the same step."""
        errors = dict(sorted(error for part in parts for error in part))
        rate = self.rate(step)
        for i in range(WIDTH):
            gradient = sum(error * features(sample)[i] for sample, error in errors.items()) / BATCH
            self.momentum[i] = 0.9 * self.momentum[i] + gradient
            self.weights[i] -= rate * (self.momentum[i] + 0.01 * self.noise.random())
        for sample, error in errors.items():
            if sample % ROWS in self.rows:
                self.rows[sample % ROWS] -= rate * error
        self.position += BATCH
        self.ctx.log(loss=sum(error * error for error in errors.values()) / BATCH)

    def rate(self, step: int) -> float:
        return 0.05 * min(1.0, (step + 1) / 20)  # warm-up

    def checkpoint(self, step: int) -> None:
        """Each rank writes its rows under a name that no other generation uses; rank 0 also what all have."""
        content: dict[str, Any] = {"rows": self.rows}
        if self.rank == 0:
            content |= {"weights": self.weights, "momentum": self.momentum, "position": self.position}
            content["noise"] = self.noise.getstate()
        self.ctx.store.write(f"{self.prefix(step)}.{self.rank}", sealed(content))

    def publish(self, step: int) -> None:
        """All ranks have written: one file says so, and is the checkpoint that is committed."""
        if self.rank == 0:
            self.ctx.store.write(self.prefix(step), sealed({"step": step, "ranks": self.size}))
            self.ctx.commit(self.prefix(step), step)

    def prefix(self, step: int) -> str:
        return f"step-{step:08}-of-{self.ctx.info.generation:04}"

    def committed(self, step: int, accepted: bool) -> None:
        """Of the older ones one is kept."""
        manifests = [name for name in self.ctx.store.names("step-") if "." not in name]
        for old in manifests[:-KEPT] if accepted else ():
            for name in self.ctx.store.names(old):
                self.ctx.store.remove(name)

    def restore(self) -> int:
        """From the latest checkpoint, or the newest before it that can be read; the same on every rank."""
        latest = self.ctx.latest()
        manifests = [name for name in self.ctx.store.names("step-") if "." not in name]
        for name in [latest, *reversed(manifests)] if latest is not None else []:
            assert name is not None
            try:
                return self.load(name)
            except (OSError, ValueError):
                continue  # torn, lost or not what was written
        return 0

    def load(self, name: str) -> int:
        manifest = unsealed(self.ctx.store.read(name))
        shards = [unsealed(self.ctx.store.read(f"{name}.{rank}")) for rank in range(manifest["ranks"])]
        whole = shards[0]
        self.weights, self.momentum, self.position = whole["weights"], whole["momentum"], whole["position"]
        version, state, gauss = whole["noise"]
        self.noise.setstate((version, tuple(state), gauss))
        rows = {int(row): value for shard in shards for row, value in shard["rows"].items()}
        self.rows = {row: rows[row] for row in rows if self.owns(row)}
        return int(manifest["step"])

    def state(self) -> dict[str, object]:
        """What has to be the same at the end, whatever happened on the way."""
        rows = {f"row {row}": value for row, value in self.rows.items()}
        return {"weights": self.weights, "momentum": self.momentum, "position": self.position, **rows}


def features(sample: int) -> tuple[float, ...]:
    return tuple((sample * (i + 3) % 17) / 17 for i in range(WIDTH))


def sealed(content: dict[str, Any]) -> bytes:
    """With a check sum in front."""
    data = json.dumps(content).encode()
    return b"%08x" % zlib.crc32(data) + data


def unsealed(data: bytes) -> Any:
    """ValueError when it is not what was written."""
    if len(data) < 8 or int(data[:8], 16) != zlib.crc32(data[8:]):
        raise ValueError("the check sum is wrong")
    return json.loads(data[8:])
