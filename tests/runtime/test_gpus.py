"""GPUs as NVML reports them, with a fake of the library and with FLOWDIST_FAKE_GPUS: no GPU is needed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from flowdist.cli.main import cli
from flowdist.errors import FlowdistError
from flowdist.runtime.gpus.devices import find_gpus, machine_gpus
from flowdist.runtime.gpus.driver import (
    FAKE_GPUS,
    FakeDevices,
    Gpu,
    GpuError,
    MigInstance,
    NvmlDevices,
    Use,
    Xid,
    numa_cpus,
    numa_node,
    open_devices,
    visible_gpus,
)
from flowdist.runtime.gpus.watch import DEAD
from flowdist.runtime.processes.process_states import letter_of

FOUR = tuple(Gpu(str(i), f"GPU-{name}", "H200", 1 << 37) for i, name in enumerate(("aa11", "aa22", "bb33", "cc44")))
MIXED = (*FOUR[:2], Gpu("2", "GPU-bb33", "T4"))


class Library:
    """The part of pynvml that is used, for two devices; `errors` are raised by the functions of these names."""

    NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_NOT_SUPPORTED = 10, 15, 3
    nvmlEventTypeXidCriticalError = 8  # noqa: N815  (NVML's name)

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self, **errors: int) -> None:
        self.errors, self.events, self.is_open = errors, [], True

    def __getattr__(self, name: str) -> Callable[..., object]:
        answer: Callable[..., object] = getattr(self, f"_{name}")

        def ask(*args: object) -> object:
            if name in self.errors:
                raise self.NVMLError(self.errors[name])
            return answer(*args)

        return ask

    def _nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def _nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> int:  # noqa: N802
        return int(uuid[-1:])

    def _nvmlDeviceGetUUID(self, handle: int) -> bytes:  # noqa: N802
        return f"GPU-{handle}".encode()  # old versions give bytes

    def _nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "H200"

    def _nvmlDeviceGetPciInfo(self, handle: int) -> object:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:1{handle}:00.0")

    def _nvmlDeviceGetMemoryInfo(self, handle: int) -> object:  # noqa: N802
        return SimpleNamespace(total=1000, used=10 * handle)

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> object:  # noqa: N802
        return [SimpleNamespace(pid=pid, usedGpuMemory=None) for pid in (7, 5)][: 2 * handle]

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:  # noqa: N802
        return handle

    def _nvmlDeviceGetGpuInstanceId(self, handle: int) -> int:  # noqa: N802
        return 20 + handle

    def _nvmlEventSetCreate(self) -> str:  # noqa: N802
        return "events"

    def _nvmlDeviceRegisterEvents(self, handle: int, kind: int, events: str) -> None:  # noqa: N802
        assert (kind, events) == (8, "events")

    def _nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> object:  # noqa: N802
        if not self.events:
            raise self.NVMLError(self.NVML_ERROR_TIMEOUT)
        return self.events.pop(0)

    def _nvmlShutdown(self) -> None:  # noqa: N802
        self.is_open = False


def names(gpus: tuple[Gpu, ...]) -> list[str]:
    return [gpu.name for gpu in gpus]


def machine(root: Path, nodes: dict[str, str], devices: dict[str, int]) -> Path:
    """A /sys with these NUMA nodes (cores of each) and PCI devices (the node of each)."""
    for name, cpus in nodes.items():
        (root / "devices/system/node" / name).mkdir(parents=True)
        (root / "devices/system/node" / name / "cpulist").write_text(f"{cpus}\n")
    for bus, node in devices.items():
        (root / "bus/pci/devices" / bus).mkdir(parents=True)
        (root / "bus/pci/devices" / bus / "numa_node").write_text(f"{node}\n")
    return root


def test_nvml_describes_a_gpu_and_sysfs_its_numa_node(tmp_path: Path) -> None:
    sysfs = machine(tmp_path, {"node0": "0-3", "node1": "4-7"}, {"0000:10:00.0": 1})
    first, second = NvmlDevices(Library(), sysfs).gpus()
    assert first == Gpu("0", "GPU-0", "H200", 1000, "00000000:10:00.0", numa=1)
    assert second.name == "1" and second.numa is None
    assert NvmlDevices(Library()).use("GPU-1") == Use(10, (5, 7))


def test_a_gpu_that_the_driver_does_not_describe_is_known_by_number() -> None:
    assert NvmlDevices(Library(nvmlDeviceGetUUID=999)).gpus() == (Gpu("0"), Gpu("1"))
    without_memory = NvmlDevices(Library(nvmlDeviceGetMemoryInfo=3)).gpus()
    assert [(gpu.uuid, gpu.memory) for gpu in without_memory] == [("GPU-0", 0), ("GPU-1", 0)]


def test_a_gpu_that_fell_off_the_bus_is_told_apart_from_a_question_without_answer() -> None:
    with pytest.raises(GpuError) as lost:
        NvmlDevices(Library(nvmlDeviceGetHandleByUUID=15)).use("GPU-1")
    with pytest.raises(GpuError) as unknown:
        NvmlDevices(Library(nvmlDeviceGetMemoryInfo=3)).use("GPU-1")
    assert lost.value.is_lost and not unknown.value.is_lost


def test_errors_of_the_driver_are_returned_once() -> None:
    library = Library()
    library.events = [
        SimpleNamespace(eventType=8, eventData=79, device=1),
        SimpleNamespace(eventType=16, eventData=0, device=0),
    ]
    devices = NvmlDevices(library)
    assert devices.xids() == [Xid("GPU-1", 79)]
    assert devices.xids() == []
    devices.close()
    assert not library.is_open


def test_nvml_names_the_mig_instance_and_the_one_that_an_error_concerns() -> None:
    library = Library()
    library.events = [
        SimpleNamespace(eventType=8, eventData=94, device=1, gpuInstanceId=7),
        SimpleNamespace(eventType=8, eventData=79, device=1, gpuInstanceId=0xFFFFFFFF),
    ]
    devices = NvmlDevices(library)
    assert devices.mig_instance("MIG-1") == MigInstance("GPU-1", 21) and devices.mig_instance("GPU-1") is None
    assert devices.xids() == [Xid("GPU-1", 94, 7), Xid("GPU-1", 79)]


@pytest.mark.parametrize("name", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents"])
def test_a_driver_without_error_events_returns_no_errors(name: str) -> None:
    assert NvmlDevices(Library(**{name: 3})).xids() == []


def test_the_users_list_may_have_numbers_uuids_and_mig_instances() -> None:
    assert names(visible_gpus(FOUR, {})) == ["0", "1", "2", "3"]
    chosen = visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "2, GPU-aa11,MIG-1234,"})
    assert [(gpu.name, gpu.uuid) for gpu in chosen] == [
        *(("2", "GPU-bb33"), ("GPU-aa11", "GPU-aa11"), ("MIG-1234", "MIG-1234")),
    ]
    assert [gpu.uuid for gpu in visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": "GPU-b"})] == ["GPU-bb33"]


@pytest.mark.parametrize("wrong", ["-1", "4", "GPU-aa", "GPU-zz"])
def test_like_cuda_nothing_is_seen_after_a_name_of_no_device(wrong: str) -> None:
    assert names(visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": f"3,{wrong},1"})) == ["3"]


@pytest.mark.parametrize("list_", ["1,1", "0,GPU-aa11", "GPU-aa1,GPU-aa11"])
def test_a_gpu_that_is_named_twice_is_refused(list_: str) -> None:
    with pytest.raises(FlowdistError, match=f"CUDA_VISIBLE_DEVICES={list_} names GPU .* twice"):
        visible_gpus(FOUR, {"CUDA_VISIBLE_DEVICES": list_})


def test_where_models_differ_a_number_is_no_name() -> None:
    assert names(visible_gpus(MIXED, {})) == ["GPU-aa11", "GPU-aa22", "GPU-bb33"]
    assert names(visible_gpus(MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})) == ["0", "1", "2"]
    assert visible_gpus(MIXED, {"CUDA_VISIBLE_DEVICES": "1"}) == (Gpu("1"),)  # CUDA may mean another


def test_the_numa_node_of_a_device(tmp_path: Path) -> None:
    two = machine(tmp_path / "two", {"node0": "0-1,4", "node1": "2-3"}, {"0000:10:00.0": 1, "0000:11:00.0": -1})
    assert numa_node("00000000:10:00.0", two) == 1
    assert numa_node("00000000:11:00.0", two) is None and numa_node("00000000:12:00.0", two) is None
    assert numa_node("", two) is None
    one = machine(tmp_path / "one", {"node0": "0-1"}, {"0000:af:00.0": -1})
    assert numa_node("00000000:AF:00.0", one) == 0
    assert numa_cpus(0, two) == {0, 1, 4} and numa_cpus(5, two) == frozenset()


def test_a_zombie_is_dead() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert letter_of(pid) in DEAD and letter_of(os.getpid()) not in DEAD
    os.waitpid(pid, 0)
    assert letter_of(pid) in DEAD


def fake(tmp_path: Path, *entries: dict[str, object]) -> dict[str, str]:
    (tmp_path / "gpus.json").write_text(json.dumps(entries))
    return {FAKE_GPUS: str(tmp_path / "gpus.json")}


def test_the_hook_for_tests_stands_for_the_driver(tmp_path: Path) -> None:
    env = fake(tmp_path, {"uuid": "GPU-a", "used": 5, "pids": [1]}, {"uuid": "GPU-b", "xids": [13]})
    assert machine_gpus(env) == ("0", "1")
    assert machine_gpus({**env, "CUDA_VISIBLE_DEVICES": "GPU-b"}) == ("GPU-b",)
    devices = open_devices(env)
    assert isinstance(devices, FakeDevices)
    assert devices.use("GPU-a") == Use(5, (1,)) and devices.xids() == [Xid("GPU-b", 13)] and devices.xids() == []
    fake(tmp_path, {"uuid": "GPU-a", "is_lost": True}, {"uuid": "GPU-b", "xids": [13, 79]})
    assert devices.xids() == [Xid("GPU-b", 79)]
    with pytest.raises(GpuError):
        devices.use("GPU-a")
    fake(tmp_path, {"uuid": "MIG-a", "part_of": "GPU-a", "instance": 3, "xids": [94]})
    assert devices.mig_instance("MIG-a") == MigInstance("GPU-a", 3) and devices.mig_instance("GPU-a") is None
    assert devices.xids() == [Xid("GPU-a", 94, 3)]
    (tmp_path / "gpus.json").write_text("[{}]")
    with pytest.raises(FlowdistError, match=FAKE_GPUS):
        machine_gpus(env)


def test_torch_is_asked_only_if_there_is_a_device_that_the_driver_does_not_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowdist.runtime.gpus.devices.open_devices", lambda env: None)
    (tmp_path / "torch.py").write_text("class cuda: device_count = lambda: 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    env, nowhere = {**os.environ, "PYTHONPATH": str(tmp_path)}, tmp_path / "no-driver"
    env.pop("CUDA_VISIBLE_DEVICES", None)
    assert machine_gpus(env, nowhere, tmp_path) == ()
    (tmp_path / "dxg").touch()
    assert machine_gpus(env, nowhere, tmp_path) == ("0", "1", "2")
    (tmp_path / "torch.py").write_text("raise RuntimeError\n")
    assert find_gpus(env, nowhere, tmp_path) == ()


def test_the_gpus_of_this_machine_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"uuid": "GPU-a", "model": "H200", "bus": "00000000:17:00.0", "numa": 1, "used": 3 << 20, "pids": [4, 5]}
    for name, value in fake(tmp_path, entry, {"uuid": "GPU-b", "model": "H200", "is_lost": True}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shown = CliRunner().invoke(cli, ["gpus"]).output.splitlines()
    assert shown[1].split() == ["0", "H200", "16GiB", "3MiB", "4", "5", "00000000:17:00.0", "1", "GPU-a"]
    assert shown[2].split() == ["1", "H200", "16GiB", "-", "-", "-", "-", "GPU-b"]
    told = json.loads(CliRunner().invoke(cli, ["gpus", "--json"]).output)
    assert told["kind"] == "gpus" and told["gpus"][0]["pids"] == [4, 5] and told["gpus"][1]["used"] is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "no GPU" in CliRunner().invoke(cli, ["gpus"]).output


@pytest.mark.gpu
def test_the_real_driver_answers() -> None:
    devices = open_devices({})
    if devices is None:
        pytest.skip("no NVML: nvidia-ml-py or the driver is missing")
    found = devices.gpus()
    assert found and all(gpu.uuid and gpu.model and gpu.memory and gpu.bus for gpu in found)
    assert devices.use(found[0].uuid).used < found[0].memory and devices.xids() == []
