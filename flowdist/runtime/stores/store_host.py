"""The store of a generation: a process of its own, forked from one that has torch imported already.

That is the node's fork server, where it has one with torch in it; else a template is started for it.

The agent binds the listening socket and tells its port at once; clients queue in its backlog until the store answers.
Each store is forked before any thread exists in this process, which itself never opens one. Needs torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from typing import NoReturn

from flowdist.runtime.processes.reaper import die_with_parent


class Template:
    """Imports torch once, then forks a store host for each request `{"key", "host", "port"}` that comes with a socket.

    Answers are lines: the key of a store host that has ended, with its wait status. A request without a socket kills.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._hosts: dict[str, tuple[int, int]] = {}  # by key: pid, pidfd

    def run(self) -> None:
        import torch.distributed  # noqa: F401  # what this process is for

        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    if not self._read():
                        return
                else:
                    self._ended(key.data)

    def _read(self) -> bool:
        data = b""
        fds: list[int] = []
        with contextlib.suppress(ConnectionError):
            data, fds, _, _ = socket.recv_fds(self._channel, 1 << 16, 16)
        if not data:
            return False
        for line in data.decode().splitlines():
            request = json.loads(line)
            if "port" in request:
                self._start(request["key"], request["host"], request["port"], fds.pop(0))
            elif request["key"] in self._hosts:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._hosts[request["key"]][0], signal.SIGKILL)
        return True

    def _start(self, key: str, host: str, port: int, listening: int) -> None:
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            _serve(me, host, port, listening)
        os.close(listening)
        pidfd = os.pidfd_open(pid)
        self._hosts[key] = (pid, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, key)

    def _ended(self, key: str) -> None:
        pid, pidfd = self._hosts.pop(key)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ConnectionError):  # the agent is gone: the next read says so
            self._channel.sendall((json.dumps({"key": key, "status": status}) + "\n").encode())


def _serve(parent: int, host: str, port: int, listening: int) -> NoReturn:
    """Be the store until somebody kills this process."""
    from torch.distributed import TCPStore

    code = 1
    try:
        die_with_parent(parent)
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening)
        while store.port:
            signal.pause()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def take(path: str) -> NoReturn:
    """Be the store on the listening socket that the agent hands out there."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        _, (listening,), _, _ = socket.recv_fds(link, 1, 1)
    with socket.socket(fileno=os.dup(listening)) as bound:
        host, port = bound.getsockname()[:2]
    _serve(parent, host, port, listening)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        Template(socket.socket(fileno=int(sys.argv[1]))).run()
    else:
        take(sys.argv[1])
