"""Queries to the driver of this machine's GPUs: names, memory, NUMA nodes, processes on them, and errors.

All of it comes from NVML, which never makes a CUDA context, so that a process may still fork afterwards. The library
(`nvidia-ml-py`, the extra `gpu`) is optional.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flowdist.errors import FlowdistError

FAKE_GPUS = "FLOWDIST_FAKE_GPUS"  # for tests: a JSON file that lists the GPUs, read at each call
SYSFS = Path("/sys")
NO_INSTANCE = 0xFFFFFFFF  # NVML's instance number in an error that concerns no MIG instance


class GpuError(Exception):
    """A query to the driver failed. `is_lost` is true if the driver cannot find the GPU any more."""

    def __init__(self, text: str, is_lost: bool = False) -> None:
        super().__init__(text)
        self.is_lost = is_lost


class Gpu(msgspec.Struct, frozen=True):
    """One GPU or MIG instance. Every field but `name` may be unknown: empty, 0 or None."""

    name: str  # as CUDA_VISIBLE_DEVICES names it: a number or a UUID
    uuid: str = ""
    model: str = ""
    memory: int = 0  # bytes
    bus: str = ""  # on PCI: "00000000:17:00.0"
    numa: int | None = None  # its NUMA node


class Use(NamedTuple):
    """The memory in use on a GPU, and the processes that compute there. In a container the list may be incomplete."""

    used: int  # bytes
    pids: tuple[int, ...]


class Xid(NamedTuple):
    """An error of a GPU that the driver has reported."""

    uuid: str  # of the device, also if the device is divided into MIG instances
    number: int  # NVIDIA's number for this kind of error
    instance: int | None = None  # the MIG instance that it concerns; None if the driver names none


class MigInstance(NamedTuple):
    """The place of a MIG instance: the UUID of its device, and its number there."""

    uuid: str
    instance: int


def open_devices(env: Mapping[str, str]) -> Devices | None:
    """Return the queries to NVML, or to the file in FLOWDIST_FAKE_GPUS; None without pynvml or a driver."""
    if fake := env.get(FAKE_GPUS):
        return FakeDevices(Path(fake))
    try:
        import pynvml  # optional, and useless without a driver
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return NvmlDevices(pynvml)


def visible_gpus(found: tuple[Gpu, ...], env: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA would see, in the order of CUDA_VISIBLE_DEVICES, by names that CUDA understands.

    CUDA numbers devices by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID; NVML by PCI bus. With different models the two
    may disagree: GPUs are then named by UUID, and a number is passed on unread, as are all entries if `found` is empty
    (unknown). As in CUDA, the first entry that names no GPU ends the list. FlowdistError if a GPU is named twice.
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
        gpu = _look_up(word, found, alike)
        if gpu is None:
            break  # CUDA ignores this entry and all after it
        if any(other.name == gpu.name or (gpu.uuid and other.uuid == gpu.uuid) for other in seen):
            text = f"CUDA_VISIBLE_DEVICES={chosen} names GPU {word} twice"
            raise FlowdistError(text, help="name each GPU once: none is given to two replicas")
        seen.append(gpu)
    return tuple(seen)


def _look_up(word: str, found: tuple[Gpu, ...], alike: bool) -> Gpu | None:
    """Return the GPU that one entry of CUDA_VISIBLE_DEVICES names; None if it names none.

    Empty `found`: unknown. If CUDA and NVML do not number GPUs `alike`, a number gives a Gpu with only that name.
    """
    if word == "-1":
        return None
    if word.startswith("MIG-"):
        return Gpu(word, uuid=word)
    if word.startswith("GPU-"):
        same = [gpu for gpu in found if gpu.uuid.startswith(word)]  # CUDA accepts the beginning of a UUID
        if found:
            return msgspec.structs.replace(same[0], name=word) if len(same) == 1 else None
    elif word.isdecimal() and alike and found:
        return found[int(word)] if int(word) < len(found) else None
    return Gpu(word)


def numa_node(bus: str, sysfs: Path = SYSFS) -> int | None:
    """Return the number of a PCI device's NUMA node; None if the machine does not report it."""
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}" / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    if node >= 0:
        return node
    nodes = list((sysfs / "devices/system/node").glob("node[0-9]*"))
    return 0 if len(nodes) == 1 else None  # with a single NUMA node the firmware may leave it out


def numa_cpus(node: int, sysfs: Path = SYSFS) -> frozenset[int]:
    """Return the numbers of the cores of a NUMA node; empty if the machine does not report them."""
    cpus: set[int] = set()
    with contextlib.suppress(OSError, ValueError):
        text = (sysfs / f"devices/system/node/node{node}/cpulist").read_text().strip()
        for part in text.split(","):
            low, _, high = part.partition("-")
            cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)


class NvmlDevices:
    """Queries to NVML about this machine's GPUs, each of which may raise GpuError. `nvml` is pynvml, initialised."""

    def __init__(self, nvml: Any, sysfs: Path = SYSFS) -> None:
        self._nvml, self._sysfs = nvml, sysfs
        self._events: Any = None  # the driver's event set for errors; False: it supports none

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs of the machine in the order of the PCI bus; their names are 0, 1, 2, ..."""
        return tuple(self._gpu(index) for index in range(self._ask(self._nvml.nvmlDeviceGetCount)))

    def _gpu(self, index: int) -> Gpu:
        nvml = self._nvml
        try:
            handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
            bus = _text(self._ask(nvml.nvmlDeviceGetPciInfo, handle).busId)
            uuid, model = self._ask(nvml.nvmlDeviceGetUUID, handle), self._ask(nvml.nvmlDeviceGetName, handle)
        except GpuError:
            return Gpu(str(index))  # usable by number; CUDA will report what is wrong with it
        memory = 0
        with contextlib.suppress(GpuError):  # a GPU that has no memory of its own
            memory = int(self._ask(nvml.nvmlDeviceGetMemoryInfo, handle).total)
        return Gpu(str(index), _text(uuid), _text(model), memory, bus, numa_node(bus, self._sysfs))

    def use(self, uuid: str) -> Use:
        """Return the memory in use and the processes on the device or MIG instance with this UUID."""
        handle = self._handle(uuid)
        used = int(self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle).used)
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return Use(used, tuple(sorted(int(process.pid) for process in processes)))

    def mig_instance(self, uuid: str) -> MigInstance | None:
        """Return the place of the MIG instance with this UUID; None if the UUID is that of a whole device."""
        if not uuid.startswith("MIG-"):
            return None
        nvml, handle = self._nvml, self._handle(uuid)
        device = self._ask(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        instance = self._ask(nvml.nvmlDeviceGetGpuInstanceId, handle)
        return MigInstance(_text(self._ask(nvml.nvmlDeviceGetUUID, device)), int(instance))

    def xids(self) -> list[Xid]:
        """Return the errors of all GPUs that the driver has reported since the last call."""
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
        """Release the driver's library. No other method may be called afterwards."""
        with contextlib.suppress(GpuError):
            self._ask(self._nvml.nvmlShutdown)

    def _register(self) -> Any:
        """Register for the errors of all devices and return NVML's event set; False if no device can report errors."""
        nvml = self._nvml
        try:
            events, count = self._ask(nvml.nvmlEventSetCreate), 0
            for index in range(self._ask(nvml.nvmlDeviceGetCount)):
                with contextlib.suppress(GpuError):  # a device that cannot report errors
                    handle = self._ask(nvml.nvmlDeviceGetHandleByIndex, index)
                    self._ask(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, events)
                    count += 1
        except GpuError:
            return False
        return events if count else False

    def _handle(self, uuid: str) -> Any:
        return self._ask(self._nvml.nvmlDeviceGetHandleByUUID, uuid.encode())

    def _ask(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of NVML and return its result. An error of NVML is raised as GpuError."""
        try:
            return function(*args)
        except self._nvml.NVMLError as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> GpuError:
        return GpuError(f"NVML: {error}", is_lost=error.value == self._nvml.NVML_ERROR_GPU_IS_LOST)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


class FakeGpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU in the file that FLOWDIST_FAKE_GPUS names. The fields are those of Gpu, Use and MigInstance."""

    uuid: str
    model: str = "Fake GPU"
    memory: int = 16 << 30
    bus: str = ""
    numa: int | None = None
    used: int = 0
    pids: tuple[int, ...] = ()
    xids: tuple[int, ...] = ()  # errors so far, the newest last
    part_of: str = ""  # for a MIG instance: the UUID of its device
    instance: int = 0  # for a MIG instance: its number there
    is_lost: bool = False


class FakeDevices:
    """The queries of `NvmlDevices`, answered from a file, for tests without a GPU.

    The file is read at each query, so that a test can change it. A file that cannot be read raises FlowdistError.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._returned: dict[str, int] = {}  # how many errors of each GPU `xids` has returned

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

    def mig_instance(self, uuid: str) -> MigInstance | None:
        fake = next((fake for fake in self._read() if fake.uuid == uuid), None)
        return MigInstance(fake.part_of, fake.instance) if fake is not None and fake.part_of else None

    def xids(self) -> list[Xid]:
        found: list[Xid] = []
        for fake in self._read():
            uuid, instance = (fake.part_of, fake.instance) if fake.part_of else (fake.uuid, None)
            found += [Xid(uuid, number, instance) for number in fake.xids[self._returned.get(fake.uuid, 0) :]]
            self._returned[fake.uuid] = len(fake.xids)
        return found

    def close(self) -> None:
        pass


Devices = NvmlDevices | FakeDevices
