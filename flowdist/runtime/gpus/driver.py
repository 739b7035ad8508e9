"""The GPUs of this machine, as their driver tells of them: names, memory, places, who uses them, what went wrong.

All of it comes from NVML, which never makes a CUDA context: a process that has looked may be forked from. The library
(`nvidia-ml-py`, the extra `gpu`) is imported where it is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from flowdist.errors import FlowdistError

FAKE_GPUS = "FLOWDIST_FAKE_GPUS"  # a hook for tests: a JSON file that says which GPUs there are, read at each question
SYSFS = Path("/sys")
NO_INSTANCE = 0xFFFFFFFF  # how NVML says that an error is of no part of a device


class GpuError(Exception):
    """The driver could not say it. `is_lost`: because the GPU is not there any more."""

    def __init__(self, text: str, is_lost: bool = False) -> None:
        super().__init__(text)
        self.is_lost = is_lost


class Gpu(msgspec.Struct, frozen=True):
    """One device. `name` is how CUDA_VISIBLE_DEVICES names it; what is not known is empty, 0 or None."""

    name: str
    uuid: str = ""
    model: str = ""
    memory: int = 0  # bytes
    bus: str = ""  # on PCI: "00000000:17:00.0"
    numa: int | None = None  # the NUMA node that it is at


class Use(NamedTuple):
    """Bytes that are taken on a device, and the processes that compute there; in a container perhaps none of them."""

    used: int
    pids: tuple[int, ...]


class Xid(NamedTuple):
    """The driver has reported an error of a GPU, by the number that NVIDIA gives to such errors."""

    uuid: str  # of the device, also where it is divided
    number: int
    instance: int | None = None  # the part of it (MIG) that it is of, where the driver says so


class Part(NamedTuple):
    """Where a part of a device (MIG) is: the device's UUID, and its GPU instance there."""

    uuid: str
    instance: int


class Devices(Protocol):
    """What a driver can be asked. Each question may raise GpuError."""

    def gpus(self) -> tuple[Gpu, ...]:
        """All that there are, in the order of the PCI bus; their names are 0, 1, 2, ..."""

    def use(self, uuid: str) -> Use:
        """Who uses the device now, a part of one (MIG) included."""

    def part(self, uuid: str) -> Part | None:
        """None for what is a whole device."""

    def xids(self) -> list[Xid]:
        """The errors since this was asked last."""

    def close(self) -> None:
        """Nothing is asked any more."""


def open_devices(env: Mapping[str, str]) -> Devices | None:
    """NVML, or what stands for it in tests; None where neither is there."""
    if fake := env.get(FAKE_GPUS):
        return FakeDevices(Path(fake))
    try:
        import pynvml  # an extra, and of no use without a driver
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return NvmlDevices(pynvml)


def visible_gpus(found: tuple[Gpu, ...], env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Those that CUDA would see, by names that mean to CUDA what they mean here.

    CUDA counts devices by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID, NVML by their place: where there are different
    models a number is not a name, so that UUIDs are used; a number of the user's is passed on and not looked up.

    Raises:
        FlowdistError: when CUDA_VISIBLE_DEVICES names a device twice.
    """
    alike = len({gpu.model for gpu in found}) <= 1 or env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return found if alike else tuple(msgspec.structs.replace(gpu, name=gpu.uuid) for gpu in found)
    seen: list[Gpu] = []
    for part in chosen.split(","):
        word = part.strip()
        if not word:
            continue
        gpu = _looked_up(word, found, alike)
        if gpu is None:
            break  # CUDA sees nothing of what comes after it
        if any(other.name == gpu.name or (gpu.uuid and other.uuid == gpu.uuid) for other in seen):
            text = f"CUDA_VISIBLE_DEVICES={chosen} names GPU {word} twice"
            raise FlowdistError(text, help="name each GPU once: none is given to two replicas")
        seen.append(gpu)
    return tuple(seen)


def _looked_up(word: str, found: tuple[Gpu, ...], alike: bool) -> Gpu | None:
    """What the user's word stands for; None when there is no such device."""
    if word == "-1":
        return None
    if word.startswith("MIG-"):
        return Gpu(word, uuid=word)
    if word.startswith("GPU-"):
        same = [gpu for gpu in found if gpu.uuid.startswith(word)]  # the beginning of a UUID is enough for CUDA
        if found:
            return msgspec.structs.replace(same[0], name=word) if len(same) == 1 else None
    elif word.isdecimal() and alike and found:
        return found[int(word)] if int(word) < len(found) else None
    return Gpu(word)


def numa_node(bus: str, sysfs: Path = SYSFS) -> int | None:
    """The NUMA node of a PCI device; None when the machine does not say."""
    domain, _, rest = bus.lower().partition(":")
    try:
        told = int((sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    if told >= 0:
        return told
    nodes = list((sysfs / "devices/system/node").glob("node[0-9]*"))
    return 0 if len(nodes) == 1 else None  # firmware that has one node only need not say so


def numa_cpus(node: int, sysfs: Path = SYSFS) -> frozenset[int]:
    """The cores of a NUMA node; empty when the machine does not say."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        text = (sysfs / f"devices/system/node/node{node}/cpulist").read_text().strip()
        for part in text.split(","):
            low, _, high = part.partition("-")
            cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


class NvmlDevices:
    """`nvml` is the module pynvml, initialised."""

    def __init__(self, nvml: Any, sysfs: Path = SYSFS) -> None:
        self._nvml, self._sysfs = nvml, sysfs
        self._events: Any = None  # the set in which the driver puts errors; False: it offers none

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpu(index) for index in range(self._ask(self._nvml.nvmlDeviceGetCount)))

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        try:
            handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
            bus = _text(self._ask(nvml.nvmlDeviceGetPciInfo, handle).busId)
            uuid, model = self._ask(nvml.nvmlDeviceGetUUID, handle), self._ask(nvml.nvmlDeviceGetName, handle)
        except GpuError:
            return Gpu(str(index))  # it is there by number, and CUDA will say what is wrong with it
        memory = 0
        with contextlib.suppress(GpuError):  # where it has none of its own
            memory = int(self._ask(nvml.nvmlDeviceGetMemoryInfo, handle).total)
        return Gpu(str(index), _text(uuid), _text(model), memory, bus, numa_node(bus, self._sysfs))

    def use(self, uuid: str) -> Use:
        handle = self._handle(uuid)
        used = int(self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle).used)
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return Use(used, tuple(sorted(int(process.pid) for process in processes)))

    def part(self, uuid: str) -> Part | None:
        if not uuid.startswith("MIG-"):
            return None
        nvml, handle = self._nvml, self._handle(uuid)
        device = self._ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        instance = self._ask(nvml.nvmlDeviceGetGpuInstanceId, handle)
        return Part(_text(self._ask(nvml.nvmlDeviceGetUUID, device)), int(instance))

    def xids(self) -> list[Xid]:
        if self._events is None:
            self._events = self._register()
        found: list[Xid] = []
        while self._events:
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError as error:
                if error.value == self._nvml.NVML_ERROR_TIMEOUT:
                    break
                raise self._error(error) from None
            if data.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                uuid = _text(self._ask(self._nvml.nvmlDeviceGetUUID, data.device))
                instance = int(getattr(data, "gpuInstanceId", NO_INSTANCE))
                found.append(Xid(uuid, int(data.eventData), None if instance == NO_INSTANCE else instance))
        return found

    def close(self) -> None:
        with contextlib.suppress(GpuError):
            self._ask(self._nvml.nvmlShutdown)

    def _register(self) -> Any:
        """The set of events, with every device that can report errors in it; False when there is none."""
        nvml = self._nvml
        try:
            events, count = self._ask(nvml.nvmlEventSetCreate), 0
            for index in range(self._ask(nvml.nvmlDeviceGetCount)):
                with contextlib.suppress(GpuError):  # not every device can
                    handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
                    self._ask(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, events)
                    count += 1
        except GpuError:
            return False
        return events if count else False

    def _handle(self, uuid: str) -> Any:
        return self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> GpuError:
        return GpuError(f"NVML: {error}", is_lost=error.value == self._nvml.NVML_ERROR_GPU_IS_LOST)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class FakeGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file that FLOWDIST_FAKE_GPUS names."""

    uuid: str
    model: str = "Fake GPU"
    memory: int = 16 << 30
    bus: str = ""
    numa: int | None = None
    used: int = 0
    pids: tuple[int, ...] = ()
    xids: tuple[int, ...] = ()  # errors so far, the newest last
    part_of: str = ""  # the UUID of the device of which this is a part (MIG)
    instance: int = 0  # in which instance of it
    is_lost: bool = False


class FakeDevices:
    """Says what the file says, for tests that have no GPU."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._told: dict[str, int] = {}  # how many errors of each

    def _read(self) -> list[FakeGpu]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[FakeGpu])
        except (OSError, msgspec.MsgspecError) as error:
            raise FlowdistError(f"{FAKE_GPUS}={self._file}: {error}", help="it is a hook for tests: unset it") from None

    def gpus(self) -> tuple[Gpu, ...]:
        return tuple(
            Gpu(str(index), fake.uuid, fake.model, fake.memory, fake.bus, fake.numa)
            for index, fake in enumerate(self._read())
        )

    def use(self, uuid: str) -> Use:
        fake = next((fake for fake in self._read() if fake.uuid == uuid), None)
        if fake is None or fake.is_lost:
            raise GpuError("NVML: GPU is lost", is_lost=True)
        return Use(fake.used, fake.pids)

    def part(self, uuid: str) -> Part | None:
        fake = next((fake for fake in self._read() if fake.uuid == uuid), None)
        return Part(fake.part_of, fake.instance) if fake is not None and fake.part_of else None

    def xids(self) -> list[Xid]:
        found: list[Xid] = []
        for fake in self._read():
            news = fake.xids[self._told.get(fake.uuid, 0) :]
            whose = (fake.part_of, fake.instance) if fake.part_of else (fake.uuid, None)
            found += [Xid(whose[0], number, whose[1]) for number in news]
            self._told[fake.uuid] = len(fake.xids)
        return found

    def close(self) -> None:
        pass


def is_alive(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process runs, or could: what is dead and not reaped yet is not alive."""
    try:
        return (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False
