"""The process that watches the GPUs of a node: for errors that their driver reports, and for memory of dead processes.

It is a process of its own because a driver in trouble may not answer for minutes, and the agent has to renew its lease
meanwhile. It decides nothing: it only reports to the agent, each message as one line of JSON.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

import msgspec

from flowdist.control.protocol.xid import parts_hit, xid_text
from flowdist.runtime.gpus.driver import Devices, GpuError, Use, open_devices, visible_gpus
from flowdist.runtime.processes.process_states import letter_of
from flowdist.runtime.processes.reaper import die_with_parent
from flowdist.runtime.wire.framing import LineBuffer

CLEAR_S = 10.0  # seconds that the driver may take to free the memory of dead processes
LOOK_S = 0.05  # seconds between two queries while the agent waits for that
ERRORS_S = 1.0  # seconds between two queries for errors
LOST_S = 10.0  # seconds between two checks that each GPU is still there: not every driver reports a loss
DEAD = ("", "Z", "X")  # letters of processes that are gone, or zombies
FLOOR = 256 << 20  # a GPU counts as free up to so many bytes above its use at the start: the driver takes some


class Clear(msgspec.Struct, frozen=True, tag=True):
    """The agent's request, which reports repeat by `id`, to say when these GPUs are free of dead processes' memory."""

    id: int
    gpus: tuple[int, ...]


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Report that all GPUs of a request are free, or why some were not within CLEAR_S, by their numbers."""

    id: int
    taken: dict[int, str] = {}


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Report that the driver has reported an error of a GPU, or cannot find the GPU any more."""

    gpu: int
    reason: str
    xid: int = 0  # NVIDIA's number of the error; 0: the GPU is lost


Report = Answer | Fault
_REQUESTS = msgspec.json.Decoder(Clear)
REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def encode(message: Clear | Report) -> bytes:
    """Return the message as a line of JSON."""
    return msgspec.json.encode(message) + b"\n"


class Watch:
    """Observer of one node's GPUs, with the agent's requests that are not answered yet.

    `uuids` are in the order of the GPUs' numbers, empty where unknown. Times are in seconds, on a clock that never goes
    back.
    """

    def __init__(self, devices: Devices, uuids: Sequence[str], now: float) -> None:
        self._devices, self._uuids = devices, tuple(uuids)
        self._requests: list[tuple[Clear, float]] = []  # with the time until which each waits
        self._lost: dict[int, None] = {}  # GPUs whose loss was reported
        self._reports: list[Report] = []
        self._next_presence_check = now + LOST_S
        self._has_errors = True
        self._places = {gpu: self._place(uuid) for gpu, uuid in enumerate(uuids) if uuid}
        self._used_at_start = {gpu: use.used for gpu in range(len(uuids)) if (use := self._use(gpu)) is not None}

    @property
    def pause_s(self) -> float:
        """Return how many seconds to wait before the next call of `look`."""
        return LOOK_S if self._requests else ERRORS_S

    def ask(self, request: Clear, now: float) -> None:
        """Add a request. A later call of `look` answers it, at the latest the first one CLEAR_S from now."""
        self._requests.append((request, now + CLEAR_S))

    def look(self, now: float) -> list[Report]:
        """Query the driver and return new reports: errors at each call, lost GPUs every LOST_S, memory on request."""
        self._query_errors()
        if self._next_presence_check <= now:
            self._next_presence_check = now + LOST_S
            for gpu in range(len(self._uuids)):
                self._use(gpu)
        for request, until in list(self._requests):
            left = {gpu: text for gpu in request.gpus if (text := self._left_behind(gpu))}
            if not left or until <= now:
                self._reports.append(Answer(request.id, left))
                self._requests.remove((request, until))
        reports, self._reports = self._reports, []
        return reports

    def _query_errors(self) -> None:
        if not self._has_errors:
            return
        try:
            for xid in self._devices.xids():
                instances = {gpu: instance for gpu, (uuid, instance) in self._places.items() if uuid == xid.uuid}
                hit = parts_hit(xid.number, xid.instance, instances)
                self._reports += [Fault(gpu, xid_text(xid.number), xid.number) for gpu in hit]
        except GpuError:
            self._has_errors = False  # whether the GPUs are there is still checked

    def _place(self, uuid: str) -> tuple[str, int | None]:
        """Return the UUID of the GPU's device, and its number there if it is a MIG instance; None: not, or unknown."""
        try:
            return self._devices.mig_instance(uuid) or (uuid, None)
        except GpuError:
            return uuid, None

    def _use(self, gpu: int) -> Use | None:
        """Return memory in use and processes of a GPU; None if unknown: a Fault is added once if the GPU is lost."""
        if not self._uuids[gpu]:
            return None
        try:
            return self._devices.use(self._uuids[gpu])
        except GpuError as error:
            if error.is_lost and gpu not in self._lost:
                self._lost[gpu] = None
                self._reports.append(Fault(gpu, str(error)))
            return None

    def _left_behind(self, gpu: int) -> str:
        """Return a description of the memory that dead processes still have on a GPU; empty if there is none.

        While a live process is on the GPU, the memory may be its own, and does not count. Nor does memory that was in
        use at the start: in a container, processes of other containers are missing from the driver's list, or have ids
        that mean nothing here.
        """
        use = self._use(gpu)
        if use is None or any(letter_of(pid) not in DEAD for pid in use.pids):
            return ""
        over = use.used - self._used_at_start.get(gpu, 0)
        if over <= FLOOR:
            return ""
        dead = f" by the dead process {use.pids[0]}" if use.pids else ""
        return f"{over >> 20} MiB of its memory stay taken{dead}"


def uuids_of(devices: Devices, names: Sequence[str], env: dict[str, str]) -> list[str]:
    """Return the UUID of each GPU in `names`, as CUDA_VISIBLE_DEVICES names them; empty where one is not known."""
    known = {gpu.name: gpu.uuid for gpu in visible_gpus(devices.gpus(), env)}
    return [known.get(name, "") for name in names]


def main() -> None:
    """Watch until the agent closes the socket on stdin; end at once without a driver. Arguments: agent's pid, GPUs."""
    parent, *names = sys.argv[1:]
    die_with_parent(int(parent))
    channel = socket.socket(fileno=0)
    devices = open_devices(os.environ)
    if devices is None:
        return
    try:
        watch = Watch(devices, uuids_of(devices, names, dict(os.environ)), time.monotonic())
    except GpuError:
        return
    lines = LineBuffer()
    while True:
        ready, _, _ = select.select([channel], [], [], watch.pause_s)
        if ready:
            data = b""
            with contextlib.suppress(ConnectionError):  # the agent was killed and left a report unread
                data = channel.recv(1 << 16)
            if not data:
                return
            for line in lines.feed(data):
                watch.ask(_REQUESTS.decode(line), time.monotonic())
        for report in watch.look(time.monotonic()):
            with contextlib.suppress(ConnectionError):  # the agent is gone: the next read finds out
                channel.sendall(encode(report))


if __name__ == "__main__":
    main()
