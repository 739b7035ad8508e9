"""The agent's side of the process that watches its GPUs: workers start when nothing of the dead is left on theirs."""

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
from flowdist.runtime.gpus.watch import CLEAR_S, Clear, Cleared, Dirty, Fault, Lines, decode_news, encode

PATIENCE_S = CLEAR_S + 5  # a watcher that says nothing for so long has a driver that hangs: nobody waits for it

Go = Callable[[StartReplica, tuple[int, ...]], None]


@dataclass(slots=True)
class _Waiting:
    order: io.SpawnWorkers
    go: Go
    timer: asyncio.TimerHandle
    reason: str = ""  # what is wrong with its GPU: it will not start here


class NumaUnknown(OSError):
    """A worker cannot be bound to the cores beside its GPU."""


def _beside(gpu: str, node: int | None) -> tuple[int, ...]:
    if node is None:
        raise NumaUnknown(f'numa="node": the NUMA node of GPU {gpu} is not known')
    cores = tuple(sorted(numa_cpus(node) & os.sched_getaffinity(0)))
    if not cores:
        raise NumaUnknown(f'numa="node": flowdist may use no core of NUMA node {node}, where GPU {gpu} is')
    return cores


class GpuGuard:
    """`devices` are the node's GPUs as CUDA_VISIBLE_DEVICES names them; `tell` gives the pure agent its inputs."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, devices: Sequence[str], tell: Callable[[io.AgentInput], None]
    ) -> None:
        self._loop, self._tell, self._names = loop, tell, tuple(devices)
        self._places: dict[str, int | None] | None = None  # the NUMA node of each GPU, once it is wanted
        self._used: dict[int, None] = {}  # GPUs that workers of ours have had
        self._waiting: dict[int, _Waiting] = {}  # by the number of the question
        self._asked = 0
        self._is_watched = False  # the watcher has looked once
        self._channel: socket.socket | None = None
        self._lines = Lines()
        if devices and (os.environ.get(FAKE_GPUS) or importlib.util.find_spec("pynvml") is not None):
            self._start_watcher(devices)

    def _start_watcher(self, devices: Sequence[str]) -> None:
        self._channel, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "flowdist.runtime.gpus.watch", str(os.getpid()), *devices]
        self._process = subprocess.Popen(command, stdin=theirs.fileno())
        theirs.close()
        self._channel.setblocking(False)
        self._loop.add_reader(self._channel, self._read)

    def when_free(self, order: io.SpawnWorkers, go: Go) -> None:
        """Carry the order out, now if its GPUs are fresh, or belong to workers that stay; else when they are free.

        The first waits until it is known what was taken before: what its workers take must not count as that.
        """
        gpus = order.start.gpus
        again = tuple(gpu for gpu in gpus if gpu in self._used)
        self._used.update(dict.fromkeys(gpus))
        if self._channel is None or order.kept or not (again or (gpus and not self._is_watched)):
            go(order.start, order.kept)
            return
        self._asked += 1
        timer = self._loop.call_later(PATIENCE_S, self._go_on, self._asked)
        self._waiting[self._asked] = _Waiting(order, go, timer)
        self._ask(Clear(self._asked, again))

    def cores(self, role: RoleSpec, start: StartReplica) -> list[tuple[int, ...]]:
        """What each worker of the replica is bound to; empty where it is bound to nothing.

        Raises:
            NumaUnknown: when the machine does not say where a GPU is, or has no core there for us.
        """
        if not role.numa:
            return [()] * role.procs
        if self._places is None:
            self._places = {gpu.name: gpu.numa for gpu in find_gpus(os.environ)}
        own = [self._names[gpu] for gpu in start.gpus]
        return [_beside(name, self._places.get(name)) for name in itertools.islice(itertools.cycle(own), role.procs)]

    def hurry(self, replica: ReplicaId, attempt: int) -> None:
        """The attempt is to end before it runs: it is waited for no longer."""
        for number, waiting in list(self._waiting.items()):
            start = waiting.order.start
            if (start.replica, start.attempt) == (replica, attempt):
                waiting.timer.cancel()
                del self._waiting[number]
                self._tell(io.SpawnFailed(replica, attempt, waiting.reason or "its GPU was not free yet"))

    def _ask(self, request: Clear) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # that it is gone will be read
                self._channel.sendall(encode(request))

    def _go_on(self, number: int) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            waiting.timer.cancel()
            waiting.go(waiting.order.start, waiting.order.kept)
            self._tell(io.AgentTimePassed())  # what the start has answered is heard now

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
            match decode_news(line):
                case Cleared(id):
                    self._go_on(id)
                case Dirty(id, gpu, reason):
                    if id in self._waiting:
                        self._waiting[id].timer.cancel()
                        self._waiting[id].reason = reason
                    self._tell(io.GpuFaulted(gpu, reason))
                case Fault(gpu, reason, xid):
                    self._tell(io.GpuFaulted(gpu, reason, xid))

    def _give_up(self) -> None:
        """There is nobody to ask: it could not find the driver, or has died. Starts wait for nothing from now on."""
        assert self._channel is not None
        self._loop.remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        self._process.wait()
        for number, waiting in list(self._waiting.items()):
            if not waiting.reason:
                self._go_on(number)
