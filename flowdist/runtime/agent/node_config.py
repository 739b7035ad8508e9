"""Configuration of the processes of a node, and the signals that its guardian understands."""

from __future__ import annotations

import signal

import msgspec

from flowdist.graph import SECOND, NodeSpec
from flowdist.runtime.wire.endpoint import ControllerEndpoint

# Real-time signals: batch systems send SIGUSR1 and SIGUSR2 to all processes of a job.
KILL_NODE = signal.SIGRTMIN  # to a guardian: kill everything that runs on the node, now
NOTICE_NODE = signal.SIGRTMAX  # to a guardian and its agent: the node will be taken away after `notice_ns`


class NodeConfig(msgspec.Struct, frozen=True):
    """Configuration of a node's processes. `lifeline` is a pipe whose other end closes when the supervisor ends."""

    node: NodeSpec
    number: int  # of the node in the job, from 0: selects its range of ports
    incarnation: int
    run_dir: str
    run_id: str
    control_socket: str
    socket_dir: str
    lifeline: int
    lock: int  # file descriptor, open until nothing of the node runs any more: see folder.lock_run
    devices: tuple[str, ...] = ()  # real GPUs, as CUDA_VISIBLE_DEVICES names them; the first is the node's GPU 0
    address: str = "127.0.0.1"  # by which the other nodes of the job reach this one
    interface: str = "lo"  # network interface that has the address; empty: unknown
    controller: ControllerEndpoint | None = None  # None: the controller is on this host, at `control_socket`
    notice_ns: int = 60 * SECOND  # from NOTICE_NODE until the node is taken away
