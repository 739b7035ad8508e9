"""The store host, which serves one generation's store: a fork of a process with torch imported. Needs torch.

That is a prefix, or else a template process that the agent starts, without threads. The agent binds the socket and
reports its port at once; clients queue in its backlog until the store answers.
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


class StoreTemplate:
    """Loop of the template process, which imports torch once and forks a store host for each request.

    In lines of JSON, `{"key", "host", "port"}` with a listening socket starts a host, `{"key"}` kills it, and the
    answer `{"key", "status"}` reports its end.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ)
        self._hosts: dict[str, tuple[int, int]] = {}  # by key: pid, pidfd

    def run(self) -> None:
        """Import torch, then serve requests until the agent closes its side of the channel."""
        import torch.distributed  # noqa: F401  # imported here, to be shared by all forks

        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._channel:
                    if not self._read():
                        return
                else:
                    self._report_end(key.data)

    def _read(self) -> bool:
        """Carry out the requests that have arrived. Returns False if the agent has closed its side."""
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
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _serve(parent, host, port, listening)
        os.close(listening)
        pidfd = os.pidfd_open(pid)
        self._hosts[key] = (pid, pidfd)
        self._selector.register(pidfd, selectors.EVENT_READ, key)

    def _report_end(self, key: str) -> None:
        pid, pidfd = self._hosts.pop(key)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(ConnectionError):  # the agent is gone: the next read finds out
            self._channel.sendall((json.dumps({"key": key, "status": status}) + "\n").encode())


def _serve(parent: int, host: str, port: int, listening: int) -> NoReturn:
    """Serve the store on the bound descriptor `listening` until killed, at the latest when `parent` ends.

    On an error, which goes to stderr, the exit code is 1. `parent` is the process id from before the fork.
    """
    from torch.distributed import TCPStore  # `run` has imported it: a host of stores starts without it

    try:
        die_with_parent(parent)
        store = TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening)
        while store.port:
            signal.pause()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(1)


def serve_from(path: str) -> NoReturn:
    """Main of a host forked from a prefix: receive the socket at the Unix socket `path`, and `_serve` it."""
    parent = os.getppid()
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        _, (listening,), _, _ = socket.recv_fds(link, 1, 1)
    with socket.socket(fileno=os.dup(listening)) as bound:
        host, port = bound.getsockname()[:2]
    _serve(parent, host, port, listening)


if __name__ == "__main__":
    if sys.argv[1].isdigit():
        StoreTemplate(socket.socket(fileno=int(sys.argv[1]))).run()
    else:
        serve_from(sys.argv[1])
