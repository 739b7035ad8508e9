"""The rows of the table: each plays one thing on the GPU, and returns what it has seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from flowdist.runtime.gpus.driver import open_devices
from flowdist.runtime.gpus.watch import FLOOR
from tests.gpu import scripts
from tests.gpu.bench import Bench, Broken, Recovery, recoveries


class Row(NamedTuple):
    """One row. `play` raises Broken, or returns what was observed."""

    name: str
    promise: str
    play: Callable[[Bench], str]
    limit_s: float = 60.0
    gpus_min: int = 1
    can_rehearse: bool = True  # without it, it says nothing on a CPU
    needs: str = ""  # a package that has to be installed


def check(condition: bool, words: str) -> None:
    """Raise Broken with these words, unless the condition holds."""
    if not condition:
        raise Broken(words)


LISTED = """
import json, torch
names = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([[each.name, each.total_memory, str(getattr(each, "uuid", ""))] for each in names]))
"""


def devices(bench: Bench) -> str:
    asked = subprocess.run([sys.executable, "-c", LISTED], capture_output=True, text=True, check=True, timeout=60)
    theirs = json.loads(asked.stdout.splitlines()[-1])
    check(len(theirs) == len(bench.gpus), f"torch sees {len(theirs)} devices, flowdist {len(bench.gpus)}")
    for (name, memory, uuid), gpu in zip(theirs, bench.gpus, strict=True):
        check(not gpu.uuid or uuid in gpu.uuid or not uuid, f"torch has {uuid}, flowdist {gpu.uuid}")
        check(not gpu.memory or abs(memory - gpu.memory) < gpu.memory / 10, f"memory of {name} differs")
    return f"{len(theirs)} x {theirs[0][0]}, the same in torch and NVML"


def group(bench: Bench) -> str:
    words = ["--nproc-per-node", str(bench.workers), "--max-restarts", "2", bench.script(scripts.GROUP)]
    bench.succeeded("torchrun", *words)
    sums = bench.stamps(word="sum")
    check(len(sums) == bench.workers and {each["generation"] for each in sums} == {1}, f"{sums}")
    check(all(each["value"] == bench.workers for each in sums), f"wrong sums: {sums}")
    return f"{sums[0]['backend']} over {bench.workers} worker(s): sums are right after the kill"


def elastic(bench: Bench) -> str:
    bench.script(scripts.ELASTIC)
    fields = "replicas=2, gpu=0.5, restart=policy, stop_grace='20s', hang_after=None"
    bench.topology(f"t.role('trainer', script='train.py', {fields})")
    bench.succeeded("run", stamps="plain")
    killed = bench.succeeded("run", "--fail", "trainer/1@step=trainer,60", stamps="killed")
    plain, after = ({each["value"] for each in bench.stamps(name, "final")} for name in ("plain", "killed"))
    check(len(plain) == 1 and plain == after, f"final values {plain} without a kill, {after} with one")
    stayed = "in place" in killed.text
    check(stayed, "the survivor did not stay in place")
    return f"the same final value ({plain.pop():.6f}) with and without a kill; the survivor stayed in place"


def warm(bench: Bench) -> str:
    bench.script(scripts.WARM, scripts.WARM_HEAD)
    bench.topology("t.role('trainer', script='train.py', gpu=1, restart=policy)")
    bench.succeeded("run")
    first = bench.stamps(word="first")
    check([each["generation"] for each in first] == [0, 1], f"{first}")
    check(len({each["imported_in"] for each in first} - {each["pid"] for each in first}) == 1, f"not forked: {first}")
    check(not any(each["before"] for each in first), "a CUDA context was there before the worker's first call")
    check(all(each["total"] == 2048 for each in first), "wrong result on the device")
    forked_from = {each[name] for each in first for name in ("parent", "imported_in")}
    check(not forked_from & {pid for each in first for pid in each["pids"]}, "the prefix is on the GPU")
    calls = ", ".join(f"{each['ms']:.0f} ms" for each in first)
    return f"first CUDA call {calls}; the prefix is not on the GPU"


def same(bench: Bench) -> str:
    script = bench.script(scripts.SAME, scripts.SAME_HEAD)
    words = ["--nproc-per-node", "1", "--max-restarts", "1", script]
    for more in ((), ("--compile",)):
        with bench.torchrun("--standalone", *words, *more, kills=0):
            (theirs,) = bench.wait_for(lambda: bench.stamps("torchrun", "same"))
        (bench.folder / "torchrun").unlink()
        bench.succeeded("torchrun", *words, *more, stamps=f"ours{more}", kills=1)
        (ours,) = bench.stamps(f"ours{more}", "same")
        check(ours["generation"] == 1, "the worker was not killed")
        for name in ("available", "drawn", "losses"):
            check(ours[name] == theirs[name], f"{name} {more}: torchrun {theirs[name]}, flowdist {ours[name]}")
    return f"20 losses, the last {theirs['losses'][-1]:.6f}, and three numbers drawn on the device are the same"


def shares(bench: Bench) -> str:
    bench.script(scripts.SHARES)
    bench.topology("t.role('actor', script='train.py', gpu=0.5, replicas=2, gang=False)")
    bench.succeeded("run")
    found = bench.stamps(word="share")
    check(len(found) == 2 and len({each["device"] for each in found}) == 1, f"{found}")
    check(all(each["fraction"] == 0.5 for each in found), f"{found}")
    check(bench.is_rehearsal or all(each["refused"] for each in found), "more than the share could be allocated")
    return f"two replicas on device {found[0]['device']}: 10 % of its memory is given to each, 70 % is refused"


def used(bench: Bench) -> int:
    """Return the memory in use on the first GPU, in bytes."""
    drivers = open_devices(os.environ)
    check(drivers is not None, "NVML does not answer")
    assert drivers is not None
    try:
        return drivers.use(bench.gpus[0].uuid).used
    finally:
        drivers.close()


def memory(bench: Bench) -> str:
    bench.script(scripts.MEMORY)
    bench.topology("t.role('trainer', script='train.py', gpu=1, restart=policy)")
    before = used(bench)
    with bench.job("run") as job, bench.limited(job.kill):
        (taken,) = bench.wait_for(lambda: bench.stamps(word="taken"))
        peak, began = used(bench), time.monotonic()
        os.kill(taken["pid"], signal.SIGKILL)
        while used(bench) > before + FLOOR and not bench.stamps(word="begun"):
            time.sleep(0.002)  # a driver gives no sign when memory is free: this is how finely it is measured
        freed_ms = 1000 * (time.monotonic() - began)
        (begun,) = bench.wait_for(lambda: bench.stamps(word="begun"))
        check(job.finish() == 0, job.text[-600:])
    check(begun["used"] <= before + FLOOR, f"the next worker began with {begun['used'] - before >> 20} MiB still taken")
    return f"{peak - before >> 20} MiB were free {freed_ms:.0f} ms after SIGKILL, before the next worker began"


def fault(bench: Bench) -> str:
    bench.script(scripts.FAULT)
    bench.topology("t.role('trainer', script='train.py', gpu=1, restart=policy)")
    job = bench.succeeded("run")
    usable = bench.stamps(word="usable")
    check(len(usable) == 1 and usable[0]["value"] == 4, f"the GPU was not usable afterwards: {usable}")
    xids = sorted({line.partition("xid")[2].split()[0] for line in job.text.lower().splitlines() if "xid " in line})
    said = f"Xid {', '.join(xids)}" if xids else "no Xid"
    return f"NVML reports {said} for an assertion on the device; the GPU stays in use"


def events(bench: Bench) -> str:
    drivers = open_devices(os.environ)
    check(drivers is not None, "NVML does not answer")
    assert drivers is not None
    found = drivers.xids()
    drivers.close()
    return f"Xid events can be watched; {len(found)} were waiting"


def recovery(bench: Bench) -> str:
    return recovery_of(bench, bench.script(scripts.DDP))


def trainer(bench: Bench) -> str:
    return recovery_of(bench, bench.script(scripts.TRAINER, scripts.TRAINER_HEAD))


def recovery_of(bench: Bench, script: str) -> str:
    words = ["--nproc-per-node", str(bench.workers), "--max-restarts", "3", script]
    with bench.job("torchrun", *words, stamps="ours", kills=2) as job, bench.limited(job.kill):
        ours = recoveries(bench, "ours", 2)
        check(job.finish() == 0, job.text[-600:])
    with bench.torchrun("--standalone", *words, kills=1):
        theirs = recoveries(bench, "torchrun", 1)
    return compared(ours, theirs)


def compared(ours: Recovery, theirs: Recovery) -> str:
    """Return the times of flowdist beside torchrun's, and the ratio of the first kills."""
    ratio = ours.seconds[0] / theirs.seconds[0]
    return f"flowdist {ours.words()} (first and second kill), torchrun {theirs.words()}: {ratio:.2f} of it"


ROWS = (
    Row("devices", "flowdist finds the devices that torch sees", devices, 20, can_rehearse=False),
    Row("events", "NVML's events can be watched", events, 15, can_rehearse=False),
    Row("group", "a process group forms, and again after a SIGKILL; NCCL on GPUs", group, 45),
    Row("several", "the same over several devices", group, 90, gpus_min=2, can_rehearse=False),
    Row("elastic", "elastic() with CUDA tensors: a kill changes no value", elastic, 60),
    Row("warm", "a forked worker makes its CUDA context itself, at its first call", warm, 30),
    Row("same", "a script that asks for CUDA first, killed on the way, computes the same as under torchrun", same, 130),
    Row("shares", "gpu=0.5: two replicas on one device, each within its share", shares, 30),
    Row("memory", "memory of a killed worker is free before the next one begins", memory, 30, can_rehearse=False),
    Row("fault", "an error of the program on the device costs a restart, not the GPU", fault, 30),
    Row("recovery", "from SIGKILL to the first optimizer step, DDP with AdamW", recovery, 80),
    Row("trainer", "the same with the Trainer of transformers", trainer, 90, needs="transformers"),
)
