"""The process that watches the GPUs of a node: errors that their driver reports, and memory that the dead leave behind.

It is a process of its own because a driver that is in trouble may not answer for minutes, and the agent has a lease to
keep. It decides nothing: it says what it sees, each message one line of JSON.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flowdist.control.protocol.xid import parts_hit, xid_text
from flowdist.runtime.gpus.driver import Devices, GpuError, is_alive, open_devices, visible_gpus
from flowdist.runtime.processes.reaper import die_with_parent

CLEAR_S = 10.0  # so long the driver may take to give the memory of the dead back
LOOK_S = 0.05  # how often it is asked meanwhile
ERRORS_S = 1.0  # how often it is asked for errors
LOST_S = 10.0  # how often each GPU is asked whether it is there: not every driver reports that
FLOOR = 256 << 20  # bytes more than at the beginning that mean nothing: what the driver itself takes


class Clear(msgspec.Struct, frozen=True, tag=True):
    """Answer when nothing of the dead is left on these GPUs, by their numbers on the node."""

    id: int
    gpus: tuple[int, ...]


class Cleared(msgspec.Struct, frozen=True, tag=True):
    id: int


class Dirty(msgspec.Struct, frozen=True, tag=True):
    """It has not come to that in time."""

    id: int
    gpu: int
    reason: str


class Fault(msgspec.Struct, frozen=True, tag=True):
    """The driver reports an error of a GPU, or cannot find it any more."""

    gpu: int
    reason: str
    xid: int = 0


News = Cleared | Dirty | Fault
_REQUESTS = msgspec.json.Decoder(Clear)
_NEWS: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)


def encode(message: Clear | News) -> bytes:
    return msgspec.json.encode(message) + b"\n"


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


def decode_news(line: bytes) -> News:
    return _NEWS.decode(line)


class Watch:
    """`uuids` are the node's GPUs in the order of their numbers; empty where one is not known. Times in seconds."""

    def __init__(self, devices: Devices, uuids: Sequence[str], now: float, proc: Path = Path("/proc")) -> None:
        self._devices, self._uuids, self._proc = devices, tuple(uuids), proc
        self._asked: list[tuple[Clear, float]] = []  # until when
        self._lost: dict[int, None] = {}  # told
        self._news: list[News] = []
        self._look_at = now + LOST_S
        self._has_errors = True
        self._places = {gpu: self._place(uuid) for gpu, uuid in enumerate(uuids) if uuid}
        self._at_first = {gpu: used for gpu in range(len(uuids)) if (used := self._used(gpu)) is not None}

    @property
    def pause_s(self) -> float:
        """How long nothing need be looked at."""
        return LOOK_S if self._asked else ERRORS_S

    def ask(self, request: Clear, now: float) -> None:
        self._asked.append((request, now + CLEAR_S))

    def look(self, now: float) -> list[News]:
        """What there is to say by now."""
        self._look_at_errors()
        if self._look_at <= now:
            self._look_at = now + LOST_S
            for gpu in range(len(self._uuids)):
                self._used(gpu)
        for request, until in list(self._asked):
            left = {gpu: text for gpu in request.gpus if (text := self._left_behind(gpu))}
            if not left:
                self._news.append(Cleared(request.id))
            elif until <= now:
                self._news += [Dirty(request.id, gpu, text) for gpu, text in left.items()]
            else:
                continue
            self._asked.remove((request, until))
        news, self._news = self._news, []
        return news

    def _look_at_errors(self) -> None:
        if not self._has_errors:
            return
        try:
            for xid in self._devices.xids():
                parts = {gpu: instance for gpu, (uuid, instance) in self._places.items() if uuid == xid.uuid}
                hit = parts_hit(xid.number, xid.instance, parts)
                self._news += [Fault(gpu, xid_text(xid.number), xid.number) for gpu in hit]
        except GpuError:
            self._has_errors = False  # whether the GPUs are there is asked all the same

    def _place(self, uuid: str) -> tuple[str, int | None]:
        """The device that errors are reported of, and the part of it that this is; None: it is all of it."""
        try:
            return self._devices.part(uuid) or (uuid, None)
        except GpuError:
            return uuid, None

    def _used(self, gpu: int) -> int | None:
        """Bytes in use; None when that is not known."""
        use = self._use(gpu)
        return use[0] if use is not None else None

    def _use(self, gpu: int) -> tuple[int, tuple[int, ...]] | None:
        if not self._uuids[gpu]:
            return None
        try:
            return self._devices.use(self._uuids[gpu])
        except GpuError as error:
            if error.is_lost and gpu not in self._lost:
                self._lost[gpu] = None
                self._news.append(Fault(gpu, str(error)))
            return None

    def _left_behind(self, gpu: int) -> str:
        """What holds up a successor, in words; empty when nothing does.

        Somebody who lives there is no reason: what is taken may be theirs. A container sees processes of others on no
        list, or under ids that are nobody's here: what was taken at the beginning does not count.
        """
        use = self._use(gpu)
        if use is None or any(is_alive(pid, self._proc) for pid in use[1]):
            return ""
        over = use[0] - self._at_first.get(gpu, 0)
        if over <= FLOOR:
            return ""
        dead = f" by the dead process {use[1][0]}" if use[1] else ""
        return f"{over >> 20} MiB of its memory stay taken{dead}"


def uuids_of(devices: Devices, names: Sequence[str], env: dict[str, str]) -> list[str]:
    """The UUIDs of the GPUs that CUDA_VISIBLE_DEVICES names so; empty where that is not known."""
    known = {gpu.name: gpu.uuid for gpu in visible_gpus(devices.gpus(), env)}
    return [known.get(name, "") for name in names]


def main() -> None:
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
    lines = Lines()
    while True:
        ready, _, _ = select.select([channel], [], [], watch.pause_s)
        if ready:
            data = b""
            with contextlib.suppress(ConnectionError):  # the agent was killed, with an answer unread
                data = channel.recv(1 << 16)
            if not data:
                return
            for line in lines.feed(data):
                watch.ask(_REQUESTS.decode(line), time.monotonic())
        for news in watch.look(time.monotonic()):
            with contextlib.suppress(ConnectionError):  # the next read says so
                channel.sendall(encode(news))


if __name__ == "__main__":
    main()
