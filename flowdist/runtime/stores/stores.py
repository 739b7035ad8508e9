"""The agent's side of the stores: a socket is bound at once, and served by a store host when somebody wants it.

A generation whose workers never ask for a store costs a socket and nothing else: the store host is started by the
first connection, or at once for worlds of several workers, whose process group will want it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import sys
from collections.abc import Callable

from flowdist.runtime.stores.store_forks import Key, StoreForks
from flowdist.runtime.wire.addresses import family_of

BACKLOG = 1024


class Stores:
    """`exited` is called when a store host ends, asked or not. They are `forks` of the fork server, if there is one.

    While `is_early` it is not known yet: nobody is to be served, since workers wait for the fork server, too. `address`
    is the node's: stores listen there.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, exited: Callable[[Key, str], None], forks: StoreForks, address: str
    ) -> None:
        self._loop, self._exited, self._forks, self._address = loop, exited, forks, address
        self.is_early = False
        self._early: dict[Key, None] = {}
        self._listening: dict[Key, socket.socket] = {}  # bound, nobody serves it yet
        self._hosted: dict[Key, None] = {}
        self._template: Template | None = None
        self.has_torch = importlib.util.find_spec("torch") is not None

    def bind(self, key: Key, eager: bool) -> int:
        """Bind the store of a generation and return its port. Without torch nobody serves it: rank 0 may."""
        listening = socket.create_server((self._address, 0), family=family_of(self._address), backlog=BACKLOG)
        port: int = listening.getsockname()[1]
        if not self.has_torch:
            listening.close()
            return port
        self._listening[key] = listening
        if eager:
            self._host(key)
        else:
            self._loop.add_reader(listening, self._host, key)
        return port

    def kill(self, key: Key) -> None:
        """Close the store; whoever is still connected loses it."""
        listening = self._listening.pop(key, None)
        if listening is not None:
            self._loop.remove_reader(listening)
            listening.close()
        self._early.pop(key, None)
        if key in self._hosted and not self._forks.kill(key) and self._template is not None:
            self._template.kill(key)

    def settled(self) -> None:
        """It is known whether there is a fork server."""
        self.is_early = False
        early, self._early = self._early, {}
        for key in early:
            self._host(key)

    def _host(self, key: Key) -> None:
        self._loop.remove_reader(self._listening[key])
        if self.is_early:
            self._early[key] = None
            return
        listening = self._listening.pop(key)
        if self._forks.start(key, listening):
            self._hosted[key] = None
            return
        if self._template is None:
            self._template = Template(self._loop, self.ended, self._template_died)
        self._hosted[key] = None
        self._template.start(key, listening)
        listening.close()

    def ended(self, key: Key, detail: str) -> None:
        """A store host is no more."""
        if key in self._hosted:
            del self._hosted[key]
            self._exited(key, detail)

    def _template_died(self) -> None:
        self._template = None
        for key in [key for key in self._hosted if not self._forks.has(key)]:
            self.ended(key, "the process that hosts the stores died")


class Template:
    """The process that has torch imported, and the socket to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[Key, str], None],
        died: Callable[[], None],
    ) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._channel, self._loop, self._ended, self._died = ours, loop, ended, died
        argv = [sys.executable, "-P", "-m", "flowdist.runtime.stores.store_host", str(theirs.fileno())]
        os.set_inheritable(theirs.fileno(), True)
        self.pid = os.posix_spawn(argv[0], argv, os.environ)
        theirs.close()
        self._buffer = b""
        loop.add_reader(ours, self._read)

    def start(self, key: Key, listening: socket.socket) -> None:
        host, port = listening.getsockname()[:2]
        line = json.dumps({"key": f"{key[0]} {key[1]}", "port": port, "host": host}) + "\n"
        socket.send_fds(self._channel, [line.encode()], [listening.fileno()])

    def kill(self, key: Key) -> None:
        with contextlib.suppress(OSError):
            self._channel.send((json.dumps({"key": f"{key[0]} {key[1]}"}) + "\n").encode())

    def _read(self) -> None:
        try:
            data = self._channel.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._channel)
            self._channel.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
            self._died()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            world, _, generation = answer["key"].rpartition(" ")
            self._ended((world, int(generation)), f"wait status {answer['status']}")
