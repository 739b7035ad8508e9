"""Made-up runs of a script: a walk whose weights, samples and generators follow from the step."""

from __future__ import annotations

import msgspec

from flowdist.prove.compare import Ends
from flowdist.prove.history import Attempt, Call, Run, Step, Worker
from flowdist.prove.points import Kill, Point
from flowdist.prove.watched import Watched

RANKS = (Worker("default", 0), Worker("default", 1))
STEPS, EVERY = 12, 4


def step(number: int, rank: int, **changes: object) -> Step:
    """Return step `number`, from 0, of a rank in a run without a fault."""
    plain = Step(
        losses=[f"{1 / (number + 1)}"],
        samples=[[8 * number + 4 * rank + at for at in range(4)]],
        gradients=f"g{number}",
        weights=f"w{number}",
        optimizer=f"o{number}",
        rates=[0.1 / (1 + number // EVERY)],
        scale=[2.0 ** (number // EVERY)],
        random={"torch": f"t{number}.{rank}", "python": f"p{number}.{rank}"},
        count=number,
    )
    return msgspec.structs.replace(plain, **changes)


def save(after: int) -> list[Call]:
    """Return the calls of a save after that many steps."""
    new, last = f"ckpt/{after}.tmp", f"ckpt/{after}.pt"
    return [
        Call("openat", new, "", 0, after),
        Call("write", new, "", 100, after),
        Call("fsync", new, "", 0, after),
        Call("rename", new, last, 0, after),
    ]


def attempt(rank: int, begun: int, until: int = STEPS, **changes: object) -> Attempt:
    """Return an attempt from step `begun` on; rank 0 saves every few steps."""
    done = Attempt([step(number, rank, **changes) for number in range(begun, until)])
    if rank == 0:
        done.calls = [call for after in range(begun + 1, until + 1) if after % EVERY == 0 for call in save(after)]
    done.done = len(done.calls)
    done.reads = [f"ckpt/{begun}.pt"] if begun else []
    return done


def clean_run() -> Run:
    """Return a run without a fault."""
    return Run({worker: [attempt(worker.rank, 0)] for worker in RANKS})


def resumed(begun: int, *, killed_after: int = 9, **changes: object) -> Run:
    """Return a run that was killed after some steps, and resumed with step `begun`; its steps differ by `changes`."""
    attempts = {w: [attempt(w.rank, 0, killed_after), attempt(w.rank, begun, **changes)] for w in RANKS}
    return Run(attempts, kills=1)


def watched() -> Watched:
    """Return what is known of the script: it saves after steps 4, 8 and 12."""
    return Watched(clean_run(), frozenset({"ckpt"}))


NOTHING = Ends({})
KILL = Kill(RANKS[0], "call", 1, "write", "ckpt/12.tmp")
POINT = Point("save3:default.0:write:ckpt/12.tmp:before", "all ranks in a save", (KILL,), 3)
