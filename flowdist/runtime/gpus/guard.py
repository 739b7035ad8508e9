"""The agent's side of the process that watches its node's GPUs.

Workers start once the driver has freed the memory that dead processes had on their GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol.effects import StartReplica
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import RoleSpec
from flowdist.runtime.gpus.devices import find_gpus
from flowdist.runtime.gpus.driver import FAKE_GPUS, numa_cpus
from flowdist.runtime.gpus.watch import CLEAR_S, REPORTS, Answer, Clear, Fault, encode
from flowdist.runtime.wire.framing import LineBuffer

PATIENCE_S = CLEAR_S + 5  # the driver of a watcher that is silent for longer hangs: workers start without the answer

CarryOut = Callable[[StartReplica, tuple[int, ...]], None]


@dataclass(slots=True)
class _Waiting:
    """An order to start workers that waits for the watcher's report about its GPUs."""

    order: io.SpawnWorkers
    carry_out: CarryOut
    timer: asyncio.TimerHandle
    reason: str = ""  # why a GPU cannot be used: the order will not be carried out, only cancelled


def _cores_of(gpu: str, node: int | None) -> tuple[int, ...]:
    """Return the cores of the GPU's NUMA node that this process may use. Raises OSError if there are none."""
    if node is None:
        raise OSError(f'numa="node": the NUMA node of GPU {gpu} is not known')
    cores = tuple(sorted(numa_cpus(node) & os.sched_getaffinity(0)))
    if not cores:
        raise OSError(f'numa="node": flowdist may use no core of NUMA node {node}, where GPU {gpu} is')
    return cores


class GpuGuard:
    """The node's GPUs, and the orders that wait until their GPUs are free of dead processes' memory.

    It starts a process that watches the GPUs, and passes the faults which that reports to the pure agent by `tell`.
    Without GPUs or NVML there is no watcher, and no order waits.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, devices: Sequence[str], tell: Callable[[io.AgentInput], None]
    ) -> None:
        self._loop, self._tell, self._names = loop, tell, tuple(devices)
        self._numa_nodes: dict[str, int | None] | None = None  # the NUMA node of each GPU, once one was asked for
        self._used: dict[int, None] = {}  # GPUs that workers of this node have had
        self._waiting: dict[int, _Waiting] = {}  # by the number of the request
        self._last_request = 0
        self._is_watched = False  # the watcher has answered once
        self._channel: socket.socket | None = None
        self._lines = LineBuffer()
        if devices and (os.environ.get(FAKE_GPUS) or importlib.util.find_spec("pynvml") is not None):
            self._channel, theirs = socket.socketpair()
            command = [sys.executable, "-P", "-m", "flowdist.runtime.gpus.watch", str(os.getpid()), *devices]
            self._process = subprocess.Popen(command, stdin=theirs.fileno())
            theirs.close()
            self._channel.setblocking(False)
            self._loop.add_reader(self._channel, self._read)

    def when_free(self, order: io.SpawnWorkers, carry_out: CarryOut) -> None:
        """Call `carry_out(order.start, order.kept)` once the order's GPUs are free, at most PATIENCE_S from now.

        That is at once if no worker has used them, workers stay in place, or there is no watcher. The first order waits
        even so until the watcher has measured the memory in use before any worker. If a GPU is not free in time, the
        pure agent gets GpuFaulted, and the order waits for `cancel`.
        """
        gpus = order.start.gpus
        reused = tuple(gpu for gpu in gpus if gpu in self._used)
        self._used.update(dict.fromkeys(gpus))
        if self._channel is None or order.kept or not (reused or (gpus and not self._is_watched)):
            carry_out(order.start, order.kept)
            return
        self._last_request += 1
        timer = self._loop.call_later(PATIENCE_S, self._start_waiting, self._last_request)
        self._waiting[self._last_request] = _Waiting(order, carry_out, timer)
        with contextlib.suppress(OSError):  # the watcher is gone: the next read finds out
            self._channel.sendall(encode(Clear(self._last_request, reused)))

    def cores(self, role: RoleSpec, start: StartReplica) -> list[tuple[int, ...]]:
        """Return the cores of each worker, by local rank; an empty tuple: not bound.

        OSError if the NUMA node of a GPU is not known, or this process may use no core of it.
        """
        if not role.numa:
            return [()] * role.procs
        if self._numa_nodes is None:
            self._numa_nodes = {gpu.name: gpu.numa for gpu in find_gpus(os.environ)}
        own = [self._names[gpu] for gpu in start.gpus]
        names = itertools.islice(itertools.cycle(own), role.procs)
        return [_cores_of(name, self._numa_nodes.get(name)) for name in names]

    def cancel(self, replica: ReplicaId, attempt: int) -> None:
        """Drop the waiting order, if any, of an attempt that is to be stopped, and tell the pure agent SpawnFailed."""
        for number, waiting in list(self._waiting.items()):
            start = waiting.order.start
            if (start.replica, start.attempt) == (replica, attempt):
                waiting.timer.cancel()
                del self._waiting[number]
                self._tell(io.SpawnFailed(replica, attempt, waiting.reason or "its GPU was not free yet"))

    def _start_waiting(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.carry_out(waiting.order.start, waiting.order.kept)
            self._tell(io.AgentTimePassed())  # makes the agent handle the inputs that the start has queued

    def _read(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._give_up()
            return
        for line in self._lines.feed(data):
            self._is_watched = True
            match REPORTS.decode(line):
                case Answer(id, taken):
                    if not taken:
                        self._start_waiting(id)
                    for gpu, reason in taken.items():
                        if id in self._waiting:
                            self._waiting[id].timer.cancel()
                            self._waiting[id].reason = reason
                        self._tell(io.GpuFaulted(gpu, reason))
                case Fault(gpu, reason, xid):
                    self._tell(io.GpuFaulted(gpu, reason, xid))

    def _give_up(self) -> None:
        """Go on without the watcher (no driver, or it died): start waiting orders but those with an unusable GPU."""
        assert self._channel is not None
        self._loop.remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        self._process.wait()
        for number, waiting in list(self._waiting.items()):
            if not waiting.reason:
                self._start_waiting(number)
