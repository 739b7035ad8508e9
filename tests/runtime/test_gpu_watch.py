"""The watch of GPUs with a fake driver: memory of dead processes, errors, and the starts that wait."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.effects import Decided, StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec
from flowdist.record.journal import Record
from flowdist.runtime.gpus.driver import FAKE_GPUS, Gpu, GpuError, MigInstance, Use, Xid
from flowdist.runtime.gpus.guard import GpuGuard
from flowdist.runtime.gpus.watch import CLEAR_S, FLOOR, LOST_S, REPORTS, Answer, Clear, Fault, Watch, encode, uuids_of
from flowdist.runtime.wire.framing import LineBuffer
from tests.runtime.harness import Job
from tests.runtime.spawning import Spawning

ME, DEAD = os.getpid(), 4_194_305  # above what Linux gives to processes
GIB = 1 << 30


class Driver:
    """Devices with two GPUs, a and b, whose answers a test sets."""

    def __init__(self) -> None:
        self.uses = {"a": Use(0, ()), "b": Use(0, ())}
        self.errors: list[Xid] = []
        self.lost: list[str] = []
        self.tells_errors = True

    def gpus(self) -> tuple[Gpu, ...]:
        return (Gpu("0", "a"), Gpu("1", "b"))

    def use(self, uuid: str) -> Use:
        if uuid in self.lost:
            raise GpuError("NVML: GPU is lost", is_lost=True)
        if uuid not in self.uses:
            raise GpuError("NVML: not supported")
        return self.uses[uuid]

    def mig_instance(self, uuid: str) -> MigInstance | None:
        if uuid == "MIG-?":
            raise GpuError("NVML: not found")
        return MigInstance("a", int(uuid[-1])) if uuid.startswith("MIG-") else None

    def xids(self) -> list[Xid]:
        if not self.tells_errors:
            raise GpuError("NVML: unknown error")
        found, self.errors = self.errors, []
        return found

    def close(self) -> None:
        pass


def test_memory_of_dead_processes_is_waited_for_and_no_longer() -> None:
    driver = Driver()
    watch = Watch(driver, ["a", "b"], 0)
    assert watch.pause_s == 1.0
    driver.uses["a"] = Use(3 * GIB, (DEAD,))
    watch.ask(Clear(1, (0,)), 1)
    watch.ask(Clear(2, (1,)), 1)
    assert watch.look(1) == [Answer(2)] and watch.pause_s < 0.1
    driver.uses["a"] = Use(FLOOR, (DEAD,))
    assert watch.look(2) == [Answer(1)] and watch.look(3) == []


def test_memory_that_is_not_freed_in_time_is_reported_with_its_process() -> None:
    driver = Driver()
    watch = Watch(driver, ["a", "b"], 0)
    driver.uses = {"a": Use(3 * GIB, (DEAD,)), "b": Use(GIB, ())}
    watch.ask(Clear(1, (0, 1)), 1)
    assert watch.look(1 + CLEAR_S - 0.1) == []
    (answer,) = watch.look(1 + CLEAR_S)
    assert answer == Answer(
        1,
        {
            0: f"3072 MiB of its memory stay taken by the dead process {DEAD}",
            1: "1024 MiB of its memory stay taken",
        },
    )
    assert REPORTS.decode(encode(answer)) == answer


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Use(0, ()), Use(3 * GIB, (DEAD, ME))),  # a live process is there: the memory may be its own
        (Use(3 * GIB, (DEAD,)), Use(3 * GIB, (DEAD,))),  # it was so before anything of ours ran
        (Use(GIB, ()), Use(GIB + FLOOR, ())),
    ],
)
def test_memory_of_other_processes_delays_no_start(first: Use, then: Use) -> None:
    driver = Driver()
    driver.uses["a"] = first
    watch = Watch(driver, ["a"], 0)
    driver.uses["a"] = then
    watch.ask(Clear(1, (0,)), 1)
    assert watch.look(1) == [Answer(1)]


def test_without_an_answer_of_the_driver_no_start_waits() -> None:
    watch = Watch(Driver(), ["", "unsupported"], 0)
    watch.ask(Clear(1, (0, 1)), 1)
    assert watch.look(1) == [Answer(1)]


def test_errors_are_reported_by_the_numbers_of_gpus_on_the_node() -> None:
    driver = Driver()
    watch = Watch(driver, ["b"], 0)
    driver.errors = [Xid("a", 79), Xid("b", 48)]
    assert watch.look(1) == [Fault(0, "Xid 48 (double bit ECC error)", 48)]


def test_an_error_that_ends_a_device_ends_all_its_mig_instances() -> None:
    driver = Driver()
    watch = Watch(driver, ["MIG-1", "b", "MIG-2", "MIG-?"], 0)
    driver.errors = [Xid("a", 95, 1)]
    assert [fault.gpu for fault in watch.look(1)] == [0, 2]
    driver.errors = [Xid("a", 79)]
    assert [fault.gpu for fault in watch.look(2)] == [0, 2]


def test_an_error_that_a_device_survives_is_reported_of_its_mig_instance() -> None:
    driver = Driver()
    watch = Watch(driver, ["MIG-1", "b", "MIG-2"], 0)
    driver.errors = [Xid("a", 94, 2), Xid("a", 13, 1)]
    assert [(fault.gpu, fault.xid) for fault in watch.look(1)] == [(2, 94), (0, 13)]
    driver.errors = [Xid("a", 94)]  # the driver does not say of which
    assert [fault.gpu for fault in watch.look(2)] == [0, 2]
    driver.errors = [Xid("b", 94, 2)]
    assert [fault.gpu for fault in watch.look(3)] == [1], "a device that was divided since then"


def test_a_gpu_that_is_gone_is_found_without_an_error_and_reported_once() -> None:
    driver = Driver()
    watch = Watch(driver, ["a", "b"], 0)
    driver.lost, driver.tells_errors = ["b"], False
    assert watch.look(1) == []
    assert watch.look(LOST_S) == [Fault(1, "NVML: GPU is lost")]
    assert watch.look(2 * LOST_S) == []


def test_names_of_the_users_list_stand_for_devices() -> None:
    assert uuids_of(Driver(), ["1", "0"], {}) == ["b", "a"]
    assert uuids_of(Driver(), ["1", "MIG-x", "7"], {"CUDA_VISIBLE_DEVICES": "1,MIG-x"}) == ["b", "MIG-x", ""]


def test_lines_come_in_pieces() -> None:
    lines = LineBuffer()
    assert (lines.feed(b"a\nb"), lines.feed(b"c"), lines.feed(b"\n\n")) == ([b"a"], [], [b"bc", b""])


class Places:
    """A machine with one GPU for each of these NUMA nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: list[int | None]) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self.first, self.last = (cores[0],), (cores[-1],)
        entries = [{"uuid": f"GPU-{i}", "numa": node} for i, node in enumerate(nodes)]
        (tmp_path / "gpus.json").write_text(json.dumps(entries))
        monkeypatch.setenv(FAKE_GPUS, str(tmp_path / "gpus.json"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        beside = {0: frozenset(self.first), 1: frozenset({*self.last, 100_000}), 2: frozenset({100_000})}
        monkeypatch.setattr("flowdist.runtime.gpus.guard.numa_cpus", beside.get)

    def cores(self, *gpus: int, procs: int = 1) -> list[tuple[int, ...]]:
        async def ask() -> list[tuple[int, ...]]:
            guard = GpuGuard(asyncio.get_running_loop(), (), lambda event: None)
            guard._names = ("0", "1", "2", "3")
            spec = RoleSpec("a", ("true",), procs=procs, numa="node")
            start = StartReplica("node0", ReplicaId("a", 0), 1, "a", 1, 0, 1, 0, 1, 0, 1, 0, "", 0, gpus)
            return guard.cores(spec, start)

        return asyncio.run(ask())


def test_each_worker_is_bound_to_the_cores_beside_its_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Places(monkeypatch, tmp_path, [0, 1, 2, None])
    assert machine.cores(1, 0, procs=2) == [machine.last, machine.first]
    assert machine.cores(0, procs=2) == [machine.first, machine.first]
    with pytest.raises(OSError, match="no core of NUMA node 2, where GPU 2 is"):
        machine.cores(2)
    with pytest.raises(OSError, match="the NUMA node of GPU 3 is not known"):
        machine.cores(3)


@pytest.mark.real
@pytest.mark.parametrize("warm", [True, False])
def test_a_worker_is_on_its_cores_from_its_first_moment_on(tmp_path: Path, warm: bool) -> None:
    core = max(os.sched_getaffinity(0))
    (tmp_path / "where.py").write_text("import os; print(sorted(os.sched_getaffinity(0)))")
    with Spawning(tmp_path) as spawning:
        bound, free = spawning.start("where.py", warm=warm, cpus=(core,)), spawning.start("where.py", warm=warm)
        assert spawning.outcome(bound).out == f"[{core}]\n"
        assert spawning.outcome(free).out == f"{sorted(os.sched_getaffinity(0))}\n"


TOPOLOGY = """
from flowdist import Node, Restart, Topology
t = Topology("gpus", nodes=[Node(cpu=2, gpu=2)])
t.role("actor", ["python", "actor.py"], gpu=1, warm=False, restart=Restart("replica", max_restarts=3))
"""
ACTOR = """
import os, sys, time
from pathlib import Path
state = "taken" if "used" in Path("gpus.json").read_text() else "free"
print("has", os.environ["CUDA_VISIBLE_DEVICES"], "in attempt", os.environ["FLOWDIST_ATTEMPT"], state, flush=True)
while not Path("fail").exists() and not Path("finish").exists():
    time.sleep(0.02)
if Path("fail").exists():
    Path("fail").unlink()
    sys.exit(3)
"""


def gpus(folder: Path, first: dict[str, object]) -> dict[str, str]:
    """Set the answers of the fake driver, atomically."""
    entries = [{"uuid": "GPU-a", **first}, {"uuid": "GPU-b"}]
    (folder / "new.json").write_text(json.dumps(entries))
    (folder / "new.json").rename(folder / "gpus.json")
    return {FAKE_GPUS: str(folder / "gpus.json")}


def job(folder: Path) -> Job:
    (folder / "topology.py").write_text(TOPOLOGY)
    (folder / "actor.py").write_text(ACTOR)
    env = gpus(folder, {})
    env["CUDA_VISIBLE_DEVICES"] = "0,1"
    return Job(folder, env=env)


def told(job: Job, kind: type) -> list[object]:
    return [line.event for line in job.journal()[1] if isinstance(line, Record) and isinstance(line.event, kind)]


def said(job: Job) -> list[str]:
    records = [line for line in job.journal()[1] if isinstance(line, Record)]
    return [effect.text for record in records for effect in record.effects if isinstance(effect, Decided)]


@pytest.mark.real
def test_a_successor_starts_when_the_memory_of_the_dead_worker_is_free(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.until("has 0 in attempt 1")
        gpus(tmp_path, {"used": 3 * GIB, "pids": [DEAD]})
        (tmp_path / "fail").touch()
        run.until("incident 1")
        (tmp_path / "finish").touch()
        gpus(tmp_path, {})
        assert run.finish() == 0, run.text
    assert "has 0 in attempt 2 free" in run.text and not told(run, ev.GpuFailed)


@pytest.mark.slow
@pytest.mark.real
def test_a_gpu_whose_memory_stays_taken_is_not_used_again(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.until("has 0 in attempt 1")
        gpus(tmp_path, {"used": 3 * GIB, "pids": [DEAD]})
        (tmp_path / "fail").touch()
        run.until("has 1 in attempt 3")  # the second attempt was stopped before it had started
        (tmp_path / "finish").touch()
        assert run.finish() == 0, run.text
    (failed,) = told(run, ev.GpuFailed)
    assert failed == ev.GpuFailed("node0", 0, f"3072 MiB of its memory stay taken by the dead process {DEAD}")
    assert "in attempt 2" not in run.text


@pytest.mark.real
def test_an_error_that_the_driver_reports_moves_the_worker_to_another_gpu(tmp_path: Path) -> None:
    with job(tmp_path) as run:
        run.until("has 0 in attempt 1")
        gpus(tmp_path, {"xids": [13]})
        run.until("that is an error of a program")
        gpus(tmp_path, {"xids": [13, 79]})
        run.until("has 1 in attempt 2")
        (tmp_path / "finish").touch()
        assert run.finish() == 0, run.text
    lost = "GPU 0 of node0 is bad: Xid 79 (fallen off the bus); lost replicas: actor/0"
    assert any(lost in text for text in said(run))
    assert not run.alive(), "the watcher ends with its agent"
