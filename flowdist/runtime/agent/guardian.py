"""The guardian of a node: a small process that is the last one of its node to end.

It kills all of its descendants, including adopted ones, when the supervisor, the spawner or the agent ends, a fault
kills the node, or the agent misses the end of its lease. Its exit code 0 proves that the node is empty (R19).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flowdist.runtime.agent.lease_watch import LeasePage, LeaseWatch
from flowdist.runtime.agent.node_config import KILL_NODE, NOTICE_NODE, NodeConfig
from flowdist.runtime.last_words import die_of, print_unexpected
from flowdist.runtime.notices import ignore_notices
from flowdist.runtime.processes.reaper import become_subreaper, die_with_parent, kill_descendants
from flowdist.runtime.processes.spawner import Spawner
from flowdist.runtime.run_folder.cleanup import remove_sockets
from flowdist.runtime.wire.endpoint import INCARNATIONS, send_death_proof
from flowdist.runtime.wire.handshake import HOST_SECRET, TOKEN, Credentials

UNTOLD = 2  # exit code of an agent that has left in order, while no controller was connected
CAUSES = {0: None, UNTOLD: ""}  # by exit code of the agent
ORPHANED = "its flowdist was killed"
EXIT_WAIT_S = 1.0  # an agent closes its sockets a moment before its parent can read its exit status


def main() -> None:
    """Run the guardian process. The command line's only argument is its NodeConfig, as JSON.

    The exit code is 0 if nothing of the node runs any more. Any other end proves nothing: a descendant may have
    outlived SIGKILL, or the guardian was killed. If the controller is on another host and was not told by the agent,
    the guardian first sends it the proof that the node is empty.
    """
    config = msgspec.json.decode(sys.argv[1], type=NodeConfig)
    token, secret = os.environ.pop(TOKEN, ""), os.environ.pop(HOST_SECRET, "")  # workers must not inherit them
    credentials = Credentials(token, config.node.name, secret)
    become_subreaper()
    ignore_notices(os.environ)
    os.set_inheritable(config.lock, False)
    agent_end, spawner_end = socket.socketpair()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(KILL_NODE, lambda *_: None)  # the handlers do nothing: the number arrives at wake_read
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ours = [wake_read, wake_write, config.lifeline, config.lock]
    spawner = _fork(lambda: _run_spawner(spawner_end), [agent_end.fileno(), *ours])
    page = LeasePage()
    agent = _fork(lambda: _run_agent(config, agent_end, credentials, page, spawner), [spawner_end.fileno(), *ours])
    agent_end.close()
    spawner_end.close()
    # SIGTERM asks the agent to stop its workers and leave the job; a notice, to tell the controller of it
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(agent, signal.SIGTERM))
    signal.signal(NOTICE_NODE, lambda *_: _pass_on(agent, NOTICE_NODE))
    cause = _watch(config.lifeline, wake_read, agent, spawner, LeaseWatch(page, os.getpid(), agent))
    left = kill_descendants()
    if config.controller is not None and cause is not None and not left:
        last = config.incarnation + INCARNATIONS - 1
        send_death_proof(config.controller, credentials, last, cause)
    if cause == ORPHANED:
        remove_sockets(Path(config.socket_dir), Path(config.run_dir))  # the supervisor, which would, has died
    sys.stderr.flush()
    os._exit(1 if left else 0)  # at once, without the interpreter's cleanup: the supervisor waits for this exit


def _pass_on(agent: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended, and the node is being killed
        os.kill(agent, number)


def _run_spawner(channel: socket.socket) -> int:
    # A batch system that cancels a job sends SIGTERM to all of its processes. The agent then leaves in order, and needs
    # the spawner for that, which ends with it. Workers do not inherit the handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    Spawner(channel).run()
    return 0


def _run_agent(
    config: NodeConfig, channel: socket.socket, credentials: Credentials, page: LeasePage, spawner: int
) -> int:
    from flowdist.runtime.agent.agent_main import run_agent  # imports asyncio, which the guardian does not need

    return 0 if run_agent(config, channel, credentials, page, spawner) else UNTOLD


def _fork(job: Callable[[], int], close: list[int]) -> int:
    """Fork a child that runs `job` and dies with this process; return its process id.

    Forking is safe, because this process has one thread. The child closes the descriptors `close`. It exits with the
    code that `job` returns, or with 1 if it fails.
    """
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        die_with_parent(me)
        signal.set_wakeup_fd(-1)
        for number in (KILL_NODE, NOTICE_NODE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for fd in close:
            os.close(fd)
        code = job()
    except BaseException as error:
        print_unexpected(error)
    finally:
        os._exit(code)


def _watch(lifeline: int, wake: int, agent: int, spawner: int, lease: LeaseWatch) -> str | None:
    """Wait until the node's processes have to be killed, and return the cause for its `DeathProof`; None: none.

    `lifeline` closes when the supervisor ends; `wake` delivers the numbers of the signals that this process gets.
    """
    poll = select.poll()
    poll.register(lifeline, select.POLLIN | select.POLLHUP)
    poll.register(wake, select.POLLIN)
    give_up_s: float | None = None
    while give_up_s is None or time.monotonic() < give_up_s:
        waits_s = [lease.seconds_until_look(), *([give_up_s - time.monotonic()] if give_up_s is not None else [])]
        ready = dict(poll.poll(max(0.0, min(waits_s)) * 1000))
        if lifeline in ready:
            return ORPHANED
        if wake in ready and KILL_NODE in os.read(wake, 4096):
            return "killed by a fault"
        if lease.is_missed():
            return "its agent stood still when its lease was over"
        ended = _reap_any()
        if agent in ended:
            return CAUSES.get(os.waitstatus_to_exitcode(ended[agent]), "its agent died")
        if spawner in ended:  # the spawner also ends when the agent ends, and its end may be reported first
            give_up_s = time.monotonic() + EXIT_WAIT_S
    return "its agent died"


def _reap_any() -> dict[int, int]:
    """Reap every child that has ended, including adopted ones, without waiting; return wait statuses by process id."""
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
    try:
        main()
    except Exception as error:
        die_of(error)
