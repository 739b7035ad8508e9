"""The guardian of a node: small, and the last to go.

It starts the node's agent and spawner and waits. When the supervisor is gone, or agent or spawner is, it kills every
descendant, adopted ones included, and ends: its end is the proof that nothing of the node runs any more (R19).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flowdist.graph import NodeSpec
from flowdist.runtime.processes.reaper import become_subreaper, die_with_parent, kill_descendants
from flowdist.runtime.processes.spawner import Spawner
from flowdist.runtime.run_folder.cleanup import remove_folder
from flowdist.runtime.wire.endpoint import INCARNATIONS, Meeting, say_gone
from flowdist.runtime.wire.handshake import TOKEN


class NodeConfig(msgspec.Struct, frozen=True):
    """What a node's processes have to know. `lifeline` closes when the supervisor ends."""

    node: NodeSpec
    number: int  # of the node, from 0: its share of the ports
    incarnation: int
    run_dir: str
    run_id: str
    control_socket: str
    socket_dir: str
    lifeline: int
    lock: int  # held until nothing of the node runs any more: see folder.lock_run
    devices: tuple[str, ...] = ()  # real GPUs of the node, by its own numbers
    address: str = "127.0.0.1"  # by which the other nodes of the job reach this one
    interface: str = "lo"  # that has the address; empty: unknown
    meeting: Meeting | None = None  # where the controller is, if it is on another host


ORPHANED = "its flowdist was killed"
LAST_S = 1.0  # an agent closes its sockets a moment before its parent can know how it has ended
KILL_NODE = signal.SIGUSR1  # to a guardian: the node dies now, with all that runs on it


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=NodeConfig)
    token = os.environ.pop(TOKEN, "")  # workers have no use for it
    become_subreaper()
    os.set_inheritable(config.lock, False)
    agent_end, spawner_end = socket.socketpair()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(KILL_NODE, lambda *_: None)  # the handlers do nothing: the number arrives at wake_read
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ours = [wake_read, wake_write, config.lifeline, config.lock]
    spawner = _fork(lambda: Spawner(spawner_end).run(), [agent_end.fileno(), *ours])
    agent = _fork(lambda: _run_agent(config, agent_end, token), [spawner_end.fileno(), *ours])
    agent_end.close()
    spawner_end.close()
    # a polite end goes to the agent: it stops its workers and leaves
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGTERM))
    cause = _watch(config.lifeline, wake_read, agent, spawner)
    left = kill_descendants()
    if config.meeting is not None and cause and not left:
        last = config.incarnation + INCARNATIONS - 1
        say_gone(config.meeting, token, config.node.name, last, cause)
    if cause == ORPHANED and config.socket_dir != config.run_dir:
        remove_folder(Path(config.socket_dir))  # in /tmp; who made it cannot any more
    sys.stderr.flush()
    os._exit(1 if left else 0)  # there is nothing to tidy up, and whoever counts on this node waits


def _run_agent(config: NodeConfig, channel: socket.socket, token: str) -> None:
    from flowdist.runtime.agent.agent_main import run_agent  # asyncio: the guardian itself does without

    run_agent(config, channel, token)


def _fork(job: Callable[[], None], close: list[int]) -> int:
    """A child that does one thing and dies with this process. This process has one thread: forking is safe."""
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(me)
        signal.set_wakeup_fd(-1)
        for number in (KILL_NODE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        job()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch(lifeline: int, wake: int, agent: int, spawner: int) -> str:
    """Returns when the node has to end: why; empty when its agent has ended in order."""
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    poll.register(wake, select.POLLIN)
    give_up_s: float | None = None
    while give_up_s is None or time.monotonic() < give_up_s:
        ready = dict(poll.poll(None if give_up_s is None else max(0.0, give_up_s - time.monotonic()) * 1000))
        if lifeline in ready:
            return ORPHANED
        if wake in ready and KILL_NODE in os.read(wake, 4096):
            return "it was killed by a fault"
        ended = _reap_any()
        if agent in ended:
            return "" if ended[agent] == 0 else "its agent died"
        if spawner in ended:  # it ends when the agent does, and may be the first of the two to be seen
            give_up_s = time.monotonic() + LAST_S
    return "its agent died"


def _reap_any() -> dict[int, int]:
    """The wait status of every child that has ended, adopted ones included."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


if __name__ == "__main__":
    main()
