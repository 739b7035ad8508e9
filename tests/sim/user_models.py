"""Models for tests/sim/test_models.py: small, and each does one thing."""

from __future__ import annotations

import contextlib
import json
import time


class Counting:
    """A model that adds up its samples and saves the sum, which is the same on every rank."""

    def __init__(self, ctx):
        self.ctx, self.total, self.calls, self.answers = ctx, 0, [], []

    def restore(self):
        if self.ctx.latest() is None:
            return 0
        step, self.total = json.loads(self.ctx.store.read(self.ctx.latest()))
        return step

    def step(self, step):
        self.calls.append(step)
        mine = [4 * step + i for i in range(4) if i % self.ctx.info.world_size == self.ctx.info.rank]
        self.ctx.consume(*mine)
        return sum(mine)

    def combine(self, step, parts):
        self.total += sum(parts)
        self.ctx.log(total=self.total)

    def publish(self, step):
        if self.ctx.info.rank == 0:
            name = f"{step}-{self.ctx.info.generation}"
            self.ctx.store.write(name, json.dumps([step, self.total]).encode())
            self.ctx.commit(name, step)

    def committed(self, step, accepted):
        self.answers.append((step, accepted))

    def state(self):
        return {"total": self.total}


class Enduring(Counting):
    """A model of which every rank writes in both parts, and ignores a write that fails."""

    def checkpoint(self, step):
        with contextlib.suppress(OSError):
            self.ctx.store.write(f"part-{self.ctx.info.rank}", b"part")

    def publish(self, step):
        with contextlib.suppress(OSError):
            super().publish(step)


class Idle:
    """A model that does nothing."""

    def __init__(self, ctx):
        self.ctx = ctx

    def restore(self):
        return 0

    def step(self, step):
        pass


class Misspelt(Idle):
    """A model that saves nothing, because of a typing error; `status` and `_publish` are methods of its own."""

    def publsh(self, step):
        self.ctx.commit("never", step)

    def status(self):
        return "well"

    def _publish(self):
        pass


class Raising(Counting):
    """A model that fails once, at its fifth step."""

    def step(self, step):
        if step == 5 and self.ctx.info.attempt == 1 and self.ctx.info.rank == 1:
            raise ValueError("the fifth step")
        return super().step(step)


class RaisingOnRestore(Counting):
    def restore(self):
        if self.ctx.info.attempt == 2:
            raise SystemExit(7)
        return super().restore()


class RaisingOnSave(Counting):
    def checkpoint(self, step):
        self.ctx.store.write("x", b"part")
        if self.ctx.info.attempt == 1:
            raise RuntimeError("no room")


class AlwaysRaising(Counting):
    def step(self, step):
        raise RuntimeError("never works")


class RaisingTwoThings(Counting):
    """A model that fails for one reason in its first attempt, and for another one in each later attempt."""

    def step(self, step):
        raise ValueError("the first") if self.ctx.info.attempt == 1 else RuntimeError("a later one")


class CommitsInStep(Counting):
    """A model that saves at times of its own."""

    def step(self, step):
        if step % 7 == 3 and self.ctx.info.rank == 0:
            self.ctx.store.write(f"early-{step}", json.dumps([step, self.total]).encode())
            self.ctx.commit(f"early-{step}", step)
        return super().step(step)

    def publish(self, step):
        pass


class Disagreeing(Counting):
    def state(self):
        return {"total": self.total + self.ctx.info.rank}


class Clocked(Counting):
    def combine(self, step, parts):
        super().combine(step, parts)
        self.ctx.log(at=time.monotonic())


class ClockedOnRestore(Counting):
    """A model that reads a clock only when it restores a checkpoint."""

    def restore(self):
        step = super().restore()
        self.total += time.monotonic() if step else 0
        return step


class Drawing(Counting):
    """A model that logs random numbers of its own rank, which a restart begins anew."""

    def combine(self, step, parts):
        super().combine(step, parts)
        self.ctx.log(mine=self.ctx.random("a", step).random(), ours=self.ctx.random("a", step, shared=True).random())

    def state(self):
        return {f"rank {self.ctx.info.rank}": self.ctx.random("end").random()}


class Writing(Counting):
    """A model that writes four files, renames one and removes one."""

    def checkpoint(self, step):
        store, rank = self.ctx.store, self.ctx.info.rank
        store.write(f"a{rank}", b"a" * 100)
        assert store.read(f"a{rank}") == b"a" * 100 and f"a{rank}" in store.names("a")
        store.rename(f"a{rank}", f"b{rank}")
        store.write(f"c{rank}", b"c" * 100)
        store.remove(f"c{rank}")
        store.write(f"d{rank}", b"%d" % step * 100)


class Server:
    """A service that counts its calls by caller, and saves by itself."""

    def __init__(self, ctx):
        self.ctx, self.told, self.saved = ctx, {}, 0

    def restore(self):
        if self.ctx.latest() is not None:
            self.told = json.loads(self.ctx.store.read(self.ctx.latest()))

    def tell(self, who, step, values):
        values.append("the caller's list is its own")
        self.told.setdefault(who, []).append(step)
        return self.told[who]

    def fail(self):
        raise KeyError("nothing")

    def checkpoint(self, number):
        self.ctx.store.write(f"told-{self.ctx.info.replica_index}-{number}", json.dumps(self.told).encode())

    def publish(self, number):
        self.ctx.commit(f"told-{self.ctx.info.replica_index}-{number}", number)

    def state(self):
        return {"told": {who: sorted(set(steps)) for who, steps in self.told.items()}}


class Telling:
    """A model that calls every server in each step."""

    def __init__(self, ctx):
        self.ctx = ctx

    def restore(self):
        return 0

    def step(self, step):
        values = []
        for address in self.ctx.peers("ps", "rpc"):
            back = self.ctx.call(address, "tell", self.ctx.info.replica, step, values)
            back.append("the server's list is its own")
        self.ctx.log(values=len(values))


class Provoking(Telling):
    """A model that makes the server fail once."""

    def step(self, step):
        if step == 4 and self.ctx.info.attempt == 1:
            self.ctx.call("ps/0:rpc", "fail")
        super().step(step)


class AskingForNoPort(Telling):
    """A model that asks for a port that its service does not have."""

    def step(self, step):
        self.ctx.peers("ps", "rcp")


class AskingForNoRole(Telling):
    """A model that asks for a role that does not exist."""

    def step(self, step):
        self.ctx.peers("sp", "rpc")


class AskingForItself(Telling):
    """A model that asks for a role of the job that its own role does not depend on."""

    def step(self, step):
        self.ctx.peers("trainer", "rpc")


class Calling(Telling):
    """A model that calls a server that does not exist."""

    def step(self, step):
        self.ctx.call("ps/9:rpc", "tell", "me", step, [])


class RestoringWrongly(Counting):
    """A model whose `restore()` answers with `wrong` of the right step, if there is a checkpoint."""

    def restore(self):
        step = super().restore()
        return step if self.ctx.latest() is None else self.wrong(step)


class RestoringNothing(RestoringWrongly):
    def wrong(self, step):
        return None


class RestoringText(RestoringWrongly):
    def wrong(self, step):
        return str(step)


class RestoringTooMany(RestoringWrongly):
    def wrong(self, step):
        return step + 1000


class RestoringNegative(RestoringWrongly):
    def wrong(self, step):
        return -1 - step


class ConsumingLists(Counting):
    def step(self, step):
        self.ctx.consume([step])
        return super().step(step)


class SendingFunctions(Counting):
    def step(self, step):
        super().step(step)
        return lambda: None


class WritingText(Counting):
    content = "text"

    def publish(self, step):
        self.ctx.store.write("name", self.content)
        super().publish(step)


class WritingNumber(WritingText):
    content = 5


class EndingWithList(Counting):
    def state(self):
        return [self.total]


class Version:
    """A value whose `==` has a mistake: it reads an attribute that does not exist."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.nummer == other.number

    __hash__ = None


class WithVersions(Counting):
    """A model that logs values whose `==` always raises."""

    def combine(self, step, parts):
        super().combine(step, parts)
        self.ctx.log(version=Version(self.total))


class WithVersionsNotRestored(WithVersions):
    def restore(self):
        step = super().restore()
        self.total = 0
        return step


class Array:
    """A value like an array or a tensor: `==` answers element by element, and only one element has a truth."""

    def __init__(self, *values):
        self.values = list(values)

    def __eq__(self, other):
        return Array(*(one == two for one, two in zip(self.values, other.values, strict=True)))

    __hash__ = None

    def __bool__(self):
        [value] = self.values
        return bool(value)

    def item(self):
        [value] = self.values
        return value


class WithArrays(Counting):
    """A model that logs an array and changes it later, logs a loss that is NaN, and ends with nested ones."""

    def __init__(self, ctx):
        super().__init__(ctx)
        self.sums = Array(0, 0)

    def restore(self):
        step = super().restore()
        self.sums.values = [self.total, -self.total]
        return step

    def step(self, step):
        mine = [4 * step + i for i in range(4) if i % self.ctx.info.world_size == self.ctx.info.rank]
        self.ctx.consume(*map(Array, mine))
        return sum(mine)

    def combine(self, step, parts):
        super().combine(step, parts)
        self.sums.values[:] = [self.total, -self.total]
        self.ctx.log(sums=self.sums, loss=float("nan"))

    def state(self):
        return {"layers": {"first": self.sums}}


class WithArraysNotRestored(WithArrays):
    def restore(self):
        step = super().restore()
        self.sums.values[1] = self.total = 0
        return step


class Summing(Counting):
    """A model that sums by rank, so that its last digits depend on the number of ranks, and ends with nested sums."""

    def step(self, step):
        super().step(step)
        size = self.ctx.info.world_size
        return sum(0.1 * (4 * step + i) for i in range(4) if i % size == self.ctx.info.rank)

    def combine(self, step, parts):
        self.total = 0.9 * self.total + sum(parts)

    def state(self):
        return {"total": self.total, "nested": [{"total": (self.total, "text")}]}


class WrongStateOfServer:
    def __init__(self, ctx):
        pass

    def state(self):
        return 3


class Sampled(Counting):
    """The same with `ctx.samples()`: 12 of 100 samples in a step, in micro-batches of one, on any number of ranks."""

    BATCH, SIZE = 12, 100

    def __init__(self, ctx):
        super().__init__(ctx)
        self.samples = ctx.samples(self.SIZE, global_batch=self.BATCH, micro_batch=1, seed=3)

    def step(self, step):
        mine = self.samples.batch(step).samples
        self.ctx.consume(*((step, sample) for sample in mine))
        return sum(mine)


class Skipping(Sampled):
    """One that goes on one step too far behind its checkpoint."""

    def restore(self):
        return super().restore() + (self.ctx.info.generation > 1)
