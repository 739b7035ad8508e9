"""The template: the process in which the user's script has come to its split, and which forks the workers from there.

Messages to a template (`link`):
    spawn ID ARGV VARIABLES FOLDER CPUS STORE    fork a worker; FOLDER gets its logs and its pid file. With a STORE, the
                                            fork serves that instead: `store_host.serve_from(STORE)`
    signal ID NUMBER                        signal the process group of a worker

Messages from it:
    ready REASON HAS_TORCH PID              the split is reached, and why, with the place in the script
    cold REASON                             this process must not be forked; it ends
    spawned ID PID, refused ID DETAIL       the answer to `spawn` and `store`
    stale ID WHY                            the answer to `spawn` if the script may do something else now
    ended ID CODE                           a worker has ended; negative for a signal
    plain                                   comes with the link of a second template, which lacks the late imports
    again ID                                a worker has to be forked anew from that one: it has done nothing yet
    rank ID                                 comes with the link of a template that worker ID has left for its rank
    bare ID REASON                          worker ID has left none, and why

Before it forks, a template imports what libraries import only when they are used: see `late`.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import atexit
import gc
import marshal
import os
import posix
import select
import sys
from time import monotonic, process_time  # the script may put something else in their place

from flowdist.runtime.prefix import fork_safety
from flowdist.runtime.prefix.caller import is_imported, place
from flowdist.runtime.prefix.environment import watch_arguments
from flowdist.runtime.prefix.late import Late
from flowdist.runtime.prefix.link import GATE, VARIABLE, Link, pair
from flowdist.runtime.prefix.signals import Handled, Shield
from flowdist.runtime.prefix.watch import Watch
from flowdist.runtime.prefix.worker import (
    OUTPUT,
    Output,
    ShownEnvironment,
    Start,
    become_worker,
    count_steps,
    die_with_parent,
    high_copy,
    import_counter,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SAME_S = 1.0  # so long what was read counts as unchanged for the workers of one generation
SIGKILL = 9
ENDS = ("it ends", "it calls os._exit")  # moments at which nothing is left to do again
# Failures that say that something is not there, which a restart sees as well. Others may pass.
NOT_THERE = (ImportError, LookupError, AttributeError, FileNotFoundError)
WORTH_S = 0.2  # of computing since its split, from which on a worker leaves a template of its rank


def begin() -> None:
    """Set the hooks in this process, a prefix that has just started. Do nothing in any other."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return
    given: dict[str, Any] = marshal.loads(bytes.fromhex(text))
    del os.environ[VARIABLE]
    del os.environ["PYTHONPATH"]
    os.environ.update(given["pythonpath"])
    die_with_parent(given["parent"])
    Prefix(given)


class Prefix:
    """This process: at first the prefix, from the split on a template, and in its forks a worker."""

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = given
        self._start: Start
        self._is_ready = self._is_worker = False
        self._once = ""  # why workers of one generation alone may be forked from here
        self._began_s = 0.0
        self._gate: Any = None  # the module that lets this worker act, if one has to
        self._has_passed = False
        self._opener = 0  # of the pipe to the template of this rank
        self._copied: list[list[int]] = []  # files that are being read at the split: see `fork_safety.copied_files`
        self._link = Link(_socket.socket(fileno=given["fd"]))
        self._own_umask = posix.umask(given["umask"])
        self._output = Output()
        self._late = Late(given["late"])
        self._children: dict[int, tuple[int, int]] = {}  # ids and pids of workers by pidfd
        self._checked: tuple[str | None, float] = None, 0.0  # a generation, and when its first worker was asked for
        self._shown = ShownEnvironment(given["pythonpath"])
        self._handled = Handled()
        self._handled.begin()
        self._watch = Watch(given["unknown"], self._come)
        self._watch.observations.note("place", given["folder"])
        atexit.register(self._end)  # the first to be registered is the last to be called
        if given["has_own_words"]:
            watch_arguments(self._watch.split)

    def _end(self) -> None:
        """Split at the end of a script that has not done so before; in a worker, let the last collection see all."""
        self._watch.split(ENDS[0])
        self._late.end_guard()
        self._pass_gate()  # it has not acted, as one that fails at once
        if self._has_passed:
            self._gate.leave()
        gc.unfreeze()  # else extensions such as nanobind's count the objects of imports as leaked

    def _come(self, why: str) -> None:
        """Split, and in a worker let it begin to act. Signals wait as long: workers handle them as their script says.

        A batch system sends signals to all processes of a job. A template and a store have to outlive them, because
        workers end with both.
        """
        shield = Shield()  # runs handlers, which may split and act themselves
        try:
            if self._watch.is_on:
                self._watch.is_on = False  # what flowdist does from here on is not the script's
                (self._act if self._is_worker else self._split)(why)
        finally:
            shield.end()

    def _split(self, why: str) -> None:
        """Become a template. This returns in forked workers alone."""
        watch = self._watch
        try:
            if unsafe := self._why_unsafe():
                self._give_up(unsafe)
            self._once = self._why_once(why)
            watch.observations.close()
            serve = self._serve if why in ENDS else self._with_late_imports
            start = serve(f"{why}{place()}")
            watch.environment.settle(start.variables, self._given["of_start"])
            become_worker(start, watch, self._output, self._copied)
            self._shown.give(start.variables)
            self._handled.begin()
            self._prepare_gate()
        except BaseException as error:  # it must not reach the script
            self._fail(error)
        self._start, self._began_s, self._is_worker = start, process_time(), True
        watch.environment.guarded, watch.environment.on_conflict = self._late.read, self._begin_again
        watch.rearm(self._come)

    def _fail(self, error: BaseException) -> NoReturn:
        """End this process: a prefix that has not split yet is given up, a template or worker dies."""
        try:
            why = f"{type(error).__name__} at its split: {error}"
            if not self._is_ready:
                self._give_up(why)
            posix.write(2, f"flowdist: {why}\n".encode())
        finally:
            posix._exit(1)

    def _why_unsafe(self) -> str:
        """Return why workers must not be forked from this process; empty if they may be."""
        if kept := self._watch.environment.kept():
            return f"a library has kept {kept} before its value was known"
        if _signal.sigpending():
            return "a signal that it blocks waits for it"
        of_script = self._watch.scratch.why_unsafe() or self._watch.generators.why_different()
        return of_script or fork_safety.why_unsafe({self._link.fileno()}, starters=self._watch.starters)

    def _why_once(self, why: str) -> str:
        """Return why a restart must not go on from here, where the script splits or acts; empty if it may."""
        if made := self._watch.observations.why_once():
            return made
        if why in ENDS:
            return "it has ended"
        if self._handled.has_any():
            return "it has handled a signal"
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        return "" if error is None or isinstance(error, NOT_THERE) else f"it handles {type(error).__name__}"

    def _begin_again(self) -> NoReturn:
        """Have this worker forked anew without late imports: it changes what they have read, and has done nothing."""
        self._watch.is_on = False
        self._output.undo(self._start)
        self._link.send("again", self._start.id)
        posix._exit(0)

    def _act(self, why: str) -> None:
        """Let a worker begin to act. If it has run for some time since its split, a template of its rank stays here."""
        start, watch = self._start, self._watch
        if process_time() - self._began_s >= WORTH_S:
            try:
                if not (bare := self._why_once(why) or self._why_unsafe()):
                    start = self._leave_template(why) or start
            except Exception as error:
                bare = f"{type(error).__name__}: {error}"
            if bare:
                self._link.send("bare", start.id, bare)
        watch.stop(start.variables)
        if start is not self._start:
            become_worker(start, watch, self._output, self._copied)
            self._shown.give(start.variables)
        count_steps(self._at_first_step)
        self._late.guard()
        self._handled.end()
        self._output.close()
        self._link.close()
        self._pass_gate()

    def _prepare_gate(self) -> None:
        """Have this worker watched from its split on, if somebody has set a gate: see `prove.in_worker`."""
        if gate := os.environ.get(GATE):
            import importlib  # not before the script has begun

            module, where = gate.split(" ", 1)
            self._gate = importlib.import_module(module)
            self._gate.prepare(where, lambda: self._come("it takes a step"))

    def _pass_gate(self) -> None:
        """Have this worker wait until it may act, if there is a gate."""
        if self._gate is not None and not self._has_passed:
            self._has_passed = True
            self._gate.enter(self._watch.observations.files())

    def _leave_template(self, why: str) -> Start | None:
        """Fork a template of this rank, and return None. In a worker that the template forks later, return its request.

        The template is no child of the worker, which may wait for children of its own.
        """
        ours, theirs = pair()
        first_step, opener = posix.pipe()
        ends, copied = self._output.sizes(), fork_safety.copied_files()
        between = fork_safety.fork()
        if between:
            posix.waitpid(between, 0)
            self._link.send("rank", self._start.id, fd=ours.fileno())
            for link in (ours, theirs):
                link.close()
            posix.close(first_step)
            self._opener = high_copy(opener)
            posix.close(opener)
            return None
        try:
            posix.setsid()  # before the worker goes on, whose group is killed when it ends
            fork_safety.reopen(copied)  # and before it reads on
            if fork_safety.fork():
                posix._exit(0)
            for link in (ours, self._link):
                link.close()
            posix.close(opener)
            self._link, self._children = theirs, {}
            self._watch.observations.close()
            self._output.keep(self._start, ends)
            return self._serve(why, first_step)
        except BaseException:  # it must not reach the script, which runs in the worker
            posix._exit(1)

    def _at_first_step(self) -> None:
        """Tell the template of this rank, if there is one, that it does not disturb the worker any more."""
        self._late.leave_variables()
        if self._opener:
            try:
                posix.write(self._opener, b".")
            except BrokenPipeError:
                self._late = Late([])  # the template has ended
            posix.close(self._opener)
            self._opener = 0

    def _give_up(self, why: str) -> NoReturn:
        self._link.send("cold", why)
        posix._exit(0)

    def _with_late_imports(self, why: str) -> Start:
        """Do the late imports, if there are any, in this process, of which a fork without them is kept; then serve."""
        if self._late.wanted():
            ours, theirs = pair()
            pid = fork_safety.fork()
            if pid == 0:
                ours.close()
                self._link.close()
                self._link = theirs
                return self._serve("")
            self._link.send("plain", fd=ours.fileno())
            ours.close()
            theirs.close()
            if failed := self._late.import_all(self._watch) or fork_safety.why_unsafe({self._link.fileno()}, pid):
                self._give_up(failed)
        return self._serve(why)

    def _serve(self, why: str, first_step: int = -1) -> Start:
        """Serve the spawner until it closes its side, which ends this process. Return in a worker that was forked.

        `why` is the split. The pipe `first_step` gets a byte at the worker's first step: late imports are done then.
        """
        self._freeze()
        self._copied = fork_safety.copied_files()  # before there are workers
        self._link.send("ready", why, is_imported("torch"), posix.getpid())
        self._is_ready = True
        poll = select.poll()
        poll.register(self._link.fileno(), select.POLLIN)
        if first_step >= 0:
            poll.register(first_step, select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == first_step:
                    poll.unregister(fd)
                    has_stepped = bool(posix.read(fd, 1))  # else the worker has ended before
                    posix.close(fd)
                    if has_stepped:
                        self._import_late_here()
                elif fd != self._link.fileno():
                    self._reap(fd, poll)
                elif (received := self._link.receive()) is None:
                    posix._exit(0)
                elif (start := self._handle(poll, *received[0])) is not None:
                    return start

    def _import_late_here(self) -> None:
        """Do the late imports in this template of a rank. If they fail, it ends: the rank starts from the prefix."""
        if self._late.wanted():
            if why := self._late.import_all(self._watch) or fork_safety.why_unsafe({self._link.fileno()}):
                self._give_up(why)
            self._freeze()

    def _freeze(self) -> None:
        """Have workers share the objects that exist now. What they all import is imported, and wrappers are noted."""
        import_counter()
        self._watch.wrappers.note_holders()
        gc.freeze()  # objects stay in pages that all workers share

    def _handle(self, poll: Any, kind: str, id: int, *rest: Any) -> Start | None:
        """Carry out a request of the spawner; return the request in the worker that was forked for it."""
        if kind == "signal":
            for child, pid in self._children.values():
                if child == id:
                    _kill_group(pid, rest[0])
            return None
        start = Start(id, *rest)
        if start.store is None and (why := self._why_stale(start)):
            self._link.send("stale", id, why)
            return None
        umask = posix.umask(self._own_umask)
        try:
            start.open_logs()
            pid = _fork_worker(start, self._link)
        except OSError as error:
            start.close_logs()
            self._link.send("refused", id, error.strerror or str(error))
            return None
        finally:
            posix.umask(umask)
        if pid == 0:
            for fd in self._children:
                posix.close(fd)
            if start.store is not None:
                _serve_store(start, self._given["store_host"], start.store)
            return start
        start.close_logs()
        pidfd = posix.pidfd_open(pid)
        self._children[pidfd] = id, pid
        poll.register(pidfd, select.POLLIN)
        return None

    def _why_stale(self, start: Start) -> str:
        """Return why the script may do something else now; empty if it does the same.

        The workers of one generation, which start together, have one answer.
        """
        key, now = start.variables.get("FLOWDIST_GENERATION"), monotonic()
        if self._once and self._checked[1] and key != self._checked[0]:
            return self._once
        if key is None or (key != self._checked[0] or now - self._checked[1] > SAME_S):
            if path := self._watch.observations.changed():
                return f"{path} has changed"
            self._checked = key, now
        return ""

    def _reap(self, pidfd: int, poll: Any) -> None:
        """Reap a worker that has ended, after killing the rest of its process group, and report its exit code."""
        id, pid = self._children.pop(pidfd)
        poll.unregister(pidfd)
        posix.close(pidfd)
        posix.waitid(posix.P_PID, pid, posix.WEXITED | posix.WNOWAIT)
        _kill_group(pid, SIGKILL)  # the leader is a zombie: the group is still its own
        self._link.send("ended", id, posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1]))


def _fork_worker(start: Start, link: Link) -> int:
    """Fork as os.fork does. The child returns only when its pid file is written and the spawner has been told of it.

    Before that it leads its group: a signal that comes at once would be lost.
    """
    ours, theirs = _socket.socketpair()
    parent, pid = posix.getpid(), -1
    try:
        pid = fork_safety.fork()
        if pid:
            theirs.close()
            ours.recv(1)
            start.write_pid(pid)
            link.send("spawned", start.id, pid)  # the worker sends on the same link
        else:
            ours.close()
            die_with_parent(parent)
            posix.setsid()
            theirs.send(b".")
            theirs.recv(1)  # returns when the parent has closed its end
    finally:
        ours.close()
        theirs.close()
    return pid


def _kill_group(pid: int, number: int) -> None:
    try:
        posix.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _serve_store(start: Start, module: str, path: str) -> NoReturn:
    """Serve a store in this fork of a template, by the function `serve_from` of a module."""
    import importlib  # not before the script has begun

    for target, log in zip(OUTPUT, start.logs, strict=True):
        posix.dup2(log, target)
    importlib.import_module(module).serve_from(path)
    posix._exit(1)
