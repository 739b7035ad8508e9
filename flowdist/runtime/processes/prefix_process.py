"""One prefix on the spawner's side: its process, and the templates from which its workers are forked."""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import selectors
import socket
import subprocess
import time
from pathlib import Path

from flowdist.control.fork_policy import PATIENCE_S
from flowdist.runtime.prefix.link import HIGH_FD, VARIABLE, Link, pair
from flowdist.runtime.processes.reaper import stat_fields
from flowdist.runtime.processes.spawn_protocol import PrefixSpec, Spawn
from flowdist.runtime.umask import INHERITED, users_umask

STORE_HOST = "flowdist.runtime.stores.store_host"  # module that serves a store in a fork of a template
IDLE_S = 3.0  # without computing for so long, a script waits for something
ROOM = 1 << 12  # bytes for the variables of a worker: see `ShownEnvironment`
BOOT = Path(__file__).parent.parent / "prefix" / "boot"


class Template:
    """A process from which workers are forked: a prefix, at its split or on the way there, or a fork of one.

    `words` are the command of the worker that has left it, which may have read them; (): no worker has.
    """

    def __init__(self, prefix: Prefix, link: Link, words: tuple[str, ...] = ()) -> None:
        self.prefix, self.link, self.words = prefix, link, words
        self.is_ready = False
        self.running: dict[int, tuple[int, Spawn]] = {}  # pids by id; 0 until the worker is forked

    def spawn(self, request: Spawn) -> bool:
        """Ask the template for a worker. Return False if the request cannot be sent."""
        unknown = request.prefix.unknown if request.prefix is not None else ()
        variables = {name: request.env[name] for name in unknown if name in request.env}
        words = (list(request.argv), variables, request.folder, list(request.cpus), request.store)
        self.running[request.id] = 0, request
        if not self.link.send("spawn", request.id, *words):
            del self.running[request.id]
            return False
        return True


class Prefix:
    """One prefix: its process, its templates, and the workers that wait for it; the selector's data are Templates."""

    def __init__(self, spec: PrefixSpec, selector: selectors.BaseSelector) -> None:
        """Start the process; OSError or ValueError if the command cannot be started."""
        self.spec, self._selector = spec, selector
        ours, theirs = pair()
        fd = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, HIGH_FD)
        theirs.close()
        output = [os.memfd_create(name, os.MFD_CLOEXEC) for name in ("stdout", "stderr")]
        for file in output:
            fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
        try:
            self._process = subprocess.Popen(
                spec.argv,
                env=_environment(spec, fd),
                cwd=spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                pass_fds=[fd],
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            for file in (fd, *output):
                os.close(file)
        self.pid = self._process.pid
        self.has_torch = self.is_stale = False
        self.deadline_s = time.monotonic() + PATIENCE_S
        self._computed, self._computed_at_s = 0, time.monotonic()
        self.waiting: dict[int, Spawn] = {}
        self.main = Template(self, ours)
        self.plain: Template | None = None  # without the late imports
        self.ranks: dict[tuple[str | None, ...], Template] = {}  # that workers have left, by the values of their rank
        self.left: list[Template] = []  # of ranks that have a newer one: they end with their last worker
        self._selector.register(ours.fileno(), selectors.EVENT_READ, self.main)

    def is_waiting(self) -> bool:
        """Return whether the script has not computed for IDLE_S seconds: it waits for something before its split."""
        now = time.monotonic()
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            fields = stat_fields(self.pid)
            computed = int(fields[11]) + int(fields[12])
            if computed != self._computed or fields[0] == b"D":
                self._computed, self._computed_at_s = computed, now
        return now - self._computed_at_s > IDLE_S

    @property
    def templates(self) -> list[Template]:
        """The templates of this prefix, `main` first."""
        return [self.main, *([self.plain] if self.plain is not None else []), *self.ranks.values(), *self.left]

    def add(self, fd: int, request: Spawn | None = None) -> None:
        """Take the link of a template that the worker of `request` has left; None: it is without late imports."""
        template = Template(self, Link(socket.socket(fileno=fd)), () if request is None else request.argv)
        self._selector.register(fd, selectors.EVENT_READ, template)
        if request is None:
            self.plain = template
        else:
            key = self.spec.rank_of(request.env)
            self.drop(self.ranks.get(key))
            self.ranks[key] = template

    def drop(self, template: Template | None) -> None:
        """Use the template of a rank no more. It ends when it has no workers."""
        if template is None:
            return
        self.ranks = {key: each for key, each in self.ranks.items() if each is not template}
        self.left = [each for each in self.left if each is not template]
        if template.running:
            self.left.append(template)
        else:
            self._selector.unregister(template.link.fileno())
            template.link.close()

    def promote_plain(self) -> bool:
        """Go on with the template without late imports, because `main` has ended. Return False if there is none."""
        if self.plain is None:
            return False
        self._selector.unregister(self.main.link.fileno())
        self.main.link.close()
        self.main, self.plain = self.plain, None
        self.main.is_ready = True
        return True

    def end(self) -> int:
        """Kill the process unless it has ended already, reap it, and return its exit code, negative for a signal."""
        for template in self.templates:
            self._selector.unregister(template.link.fileno())
            template.link.close()  # a template ends with its link
        self._process.kill()
        return self._process.wait()


def _environment(spec: PrefixSpec, fd: int) -> dict[str, str]:
    """Return the environment of a prefix process, whose link has the descriptor `fd`."""
    env = dict(spec.env)
    umask = users_umask(env)
    if umask == INHERITED:
        umask = os.umask(0o077)
        os.umask(umask)
    given = {
        "fd": fd,
        "parent": os.getpid(),
        "folder": spec.cwd,
        "umask": umask,
        "unknown": list(spec.unknown),
        "of_start": list(spec.of_start),
        "late": list(spec.late),
        "store_host": STORE_HOST,
        "has_own_words": spec.has_own_words,
        "pythonpath": {name: value for name, value in env.items() if name == "PYTHONPATH"},
    }
    path = os.pathsep.join(filter(None, [str(BOOT), env.get("PYTHONPATH", "")]))
    given_text = marshal.dumps(given).hex().ljust(ROOM)  # spaces say nothing
    env.pop("PYTHONPATH", None)
    return env | {"PYTHONPATH": path, VARIABLE: given_text}  # at the end, where workers write: see `ShownEnvironment`
