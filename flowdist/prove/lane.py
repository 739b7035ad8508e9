"""A lane: one job that never ends, in which the script is run again and again.

The job is `flowdist run` itself, with its controller, agent and warm workers. A run begins when
its workers have come to the gate, and ends when they are held in front of their exit. Between two runs all workers are
killed and the folder is reset, and flowdist restarts them as it does after any failure.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flowdist.control.protocol.events import ScaleRequested
from flowdist.prove import calls
from flowdist.prove.folder import CannotProve, Folder
from flowdist.prove.history import Attempt, Call, Run, Step, Worker
from flowdist.prove.in_worker.gate import where_of
from flowdist.prove.member import Member
from flowdist.prove.points import Kill
from flowdist.prove.watched import ALL_END, Roles
from flowdist.runtime.prefix.link import GATE
from flowdist.runtime.run_folder.runs import operate

RUNS = "runs"  # the folder of the job's own files, next to those of the lanes
RETRIES = 2  # restarts of a run that follow a failure of the script itself
LONGEST = 6  # times the limit without an event that a whole run may take
_KILLED_S = 30.0
_OUTPUT_LINES = 12
_TURN_S = 0.5
_DIE_WITH_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # which a shell ignores for what it runs in the background
os.execv(sys.argv[1], sys.argv[1:])
"""


class StartAgain(Exception):
    """Exception: the folder has to be made anew, and the job with it. See `Folder.note_written`."""


class Lane:
    """One job, and the folder in which it works.

    Args:
        command: The command of the job, without what makes it wait at the gate.
        folder: The folder, made already.
        own: A folder for the lane's own files.
        roles: What is known of the roles.
    """

    def __init__(self, command: list[str], folder: Folder, own: Path, roles: Roles = ALL_END) -> None:
        self.folder, self._own, self._tasks, self._loners = folder, own, roles.tasks, roles.loners
        self.name_of: Callable[[str], str] = lambda path: path  # the name of a path that is the same in each run
        self.behind: Callable[[Run, Worker], tuple[int, list[Call]]] | None = None  # see `Attempt.begun`
        self._run, self._kills = Run(), tuple[Kill, ...]()
        self._members: set[Member] = set()
        self._is_resetting = False
        self._reset_s = 0.0  # when the folder was reset, in seconds since the machine's start
        self._runs, self._run_id = own.parent / RUNS, ""
        self._sizes: dict[str, int] = {}  # replicas of the roles whose number was changed
        self._usual: dict[str, int] = {}  # what they had before
        self._heard = 0.0  # when something has happened last
        self.coarse = ""  # why the kernel stops no call; empty: it does
        self._is_first = True  # no worker has begun yet
        self._in_tmp: set[str] = set()  # entries of the temporary folder that stay
        (own / "tmp").mkdir(parents=True)
        self._selector = selectors.DefaultSelector()
        self._gate = socket.socket(socket.AF_UNIX)
        self._gate.bind(str(own / "gate"))
        self._gate.listen()
        self._selector.register(self._gate, selectors.EVENT_READ, self._accept)
        env = {
            **os.environ,
            GATE: f"flowdist.prove.in_worker.gate {where_of(str(own / 'gate'), str(folder.path))}",
            "TMPDIR": str(own / "tmp"),
        }
        with (own / "output").open("wb") as output:
            words = [sys.executable, "-c", _DIE_WITH_PARENT, *command]
            self._job = subprocess.Popen(words, cwd=folder.path, env=env, stdout=output, stderr=subprocess.STDOUT)

    def close(self) -> None:
        """End the job at once, with all of its processes."""
        for member in self._members:
            member.kill()
        self._job.send_signal(signal.SIGQUIT)
        try:
            self._job.wait(_KILLED_S)
        except subprocess.TimeoutExpired:
            self._job.kill()
            self._job.wait()
        for member in list(self._members):
            self._forget(member)
        self._selector.close()
        self._gate.close()

    @property
    def output(self) -> str:
        """Return the last lines that the job has written."""
        lines = (self._own / "output").read_text(errors="replace").splitlines()
        return "\n".join(lines[-_OUTPUT_LINES:])

    def play(self, kills: Iterable[Kill] = (), *, within_s: float) -> Run:
        """Run the script once, with these kills one after the other, and return what was seen.

        A run hangs if nothing happens for `within_s` seconds, or if it takes `LONGEST` times as long. That a worker
        reads or lists what it has read before is nothing: it may wait for a file to change.

        Raises:
            CannotProve: The job cannot go on, or the script writes a file that is not in its folder.
            StartAgain: The script writes what the user's folder has already.
        """
        self._reset()
        self._run, self._kills = Run(), tuple(kills)
        began = self._heard = time.monotonic()
        self._release()
        while not self._is_over():
            self._turn()
            now = time.monotonic()
            if now - self._heard > within_s or now - began > LONGEST * within_s:
                self._run.outcome, self._run.waits = "hung", self._waits()
                break
        if self.coarse:
            self._note_written(self.folder.unnoted())
        self._run.seconds = time.monotonic() - began
        return self._run

    def _is_over(self) -> bool:
        """Return whether all workers that end are held at their ends, or the run has failed too often."""
        if any(len(each) > self._run.kills + 1 + RETRIES for each in self._run.attempts.values()):
            self._run.outcome = "failed"
            return True
        tasks = [member for member in self._members if self._is_task(member)]
        worlds = Counter(member.world for member in tasks)
        roles = Counter(member.worker.role for member in tasks if member.worker.rank >= 0)
        return bool(tasks) and all(
            each.is_held
            and worlds[each.world] >= each.world_size
            and roles[each.worker.role] >= self._loners.get(each.worker.role, 0) * each.world_size
            for each in tasks
        )

    def _waits(self) -> str:
        """Return for which workers the run waits, and how far they came, in words."""
        waiting = sorted((m for m in self._members if self._is_task(m) and not m.is_held), key=lambda m: m.worker)
        steps = [f"{m.worker}, which has {m.attempt.done_steps} steps behind it" for m in waiting if m.attempt]
        return "; ".join(steps) or "workers to start"

    def _is_task(self, member: Member) -> bool:
        return self._tasks is None or member.worker.role in self._tasks

    def _reset(self) -> None:
        """Give the next run the folder as it was, and then kill all workers, and wait until they are gone.

        In this order, since the next workers are forked at once, and look at files before they come to the gate.
        """
        old = set(self._members)
        self._is_resetting = True
        for member in old:
            member.stop()
        self.folder.reset()
        self._reset_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        for member in old:
            member.kill()
        self._scale(self._usual)
        limit = time.monotonic() + _KILLED_S
        while self._members & old:
            self._turn()
            if time.monotonic() > limit:
                help = "look for a process in state D: ps aux"
                raise CannotProve("a worker of the script cannot be killed", help=help)
        self._empty_tmp()
        self._is_resetting = False

    def _scale(self, sizes: Mapping[str, int]) -> None:
        """Have the controller give roles so many replicas; worlds of another size do not begin any more."""
        for role, size in sizes.items():
            if self._sizes.get(role, self._usual.get(role)) != size:
                self._sizes[role] = size
                said = operate(self._runs / self._run_id, ScaleRequested(role, size)).said
                if refused := [each.text for each in said if each.level == "refused"]:
                    raise CannotProve(f"{role} cannot have {size} replicas: {refused[0]}")

    def _empty_tmp(self) -> None:
        """Remove what runs have left in the temporary folder, but for what was there before the first has begun.

        What the script makes in front of its split has to stay, else its workers cannot be forked from there.
        """
        for entry in (self._own / "tmp").iterdir():
            if entry.name not in self._in_tmp:
                with contextlib.suppress(OSError):
                    (shutil.rmtree if entry.is_dir() and not entry.is_symlink() else os.unlink)(entry)

    def _turn(self) -> None:
        """Handle what has happened."""
        for key, _ in self._selector.select(_TURN_S):
            key.data()
        if self._job.poll() is not None:
            raise self._why_ended()

    def _why_ended(self) -> CannotProve:
        """Return the error for a job that has ended, which it does not do by itself."""
        if self._is_first and self._job.returncode == 0:
            help = "docs/warm_starts.md says which scripts start cold"
            return CannotProve(
                f"the script starts cold, so that its workers cannot be stopped:\n{self.output}", help=help
            )
        return CannotProve(f"the job has ended with exit code {self._job.returncode}:\n{self.output}")

    def _accept(self) -> None:
        member = Member(self._gate.accept()[0], self._loners)
        self._members.add(member)
        self._heard = time.monotonic()
        self._selector.register(member.link, selectors.EVENT_READ, lambda: self._hear(member))

    def _hear(self, member: Member) -> None:
        had_listener, messages = member.listener >= 0, member.hear()
        if messages is None:
            with contextlib.suppress(KeyError, ValueError):  # it is gone already
                self._selector.unregister(member.link)
            if member.pidfd < 0:
                self._forget(member)
            return
        if member.listener >= 0 and not had_listener:
            self._selector.register(member.listener, selectors.EVENT_READ, lambda: self._stopped(member))
        for message in messages:
            if member.attempt is None:
                self._told_at_gate(member, message)
            else:
                self._told(member, member.attempt, message)

    def _told_at_gate(self, member: Member, message: dict[str, Any]) -> None:
        """Handle what a worker says before it may begin."""
        if message["kind"] == "onlooker":
            self._selector.unregister(member.link)
            self._members.discard(member)
            for each in self._members:
                each.take_onlooker(message["pid"], member.link)
            return
        if not member.introduce(message):
            self._forget(member)
            return
        if member.began_s() < self._reset_s:
            member.kill()  # it may have looked at what the run before has left
        self._selector.register(member.pidfd, selectors.EVENT_READ, lambda: self._forget(member))
        if self._is_first:
            self._in_tmp |= set(os.listdir(self._own / "tmp"))  # noqa: PTH208
            self.folder.note_ready_made()
        self._release()

    def _told(self, member: Member, attempt: Attempt, message: dict[str, Any]) -> None:
        """Handle what a worker says of what it does, and answer if it waits for that."""
        known = {"read": [*attempt.reads, *attempt.opened], "listed": attempt.listed}.get(message["kind"])
        if not known or self._relative(message["path"]) not in known:  # else it may wait for a file to change
            self._heard = time.monotonic()
        match message.pop("kind"):
            case "listener":
                pass
            case "place":
                what, _, path = message["what"].partition(" ")
                attempt.places[f"{what} {self._relative(path)}" if path else what] = message["place"]
            case "listed" | "looked" as kind:
                (attempt.listed if kind == "listed" else attempt.looked).append(self._relative(message["path"]))
            case kind:
                if self._may_go_on(member, attempt, kind, message):
                    member.say()

    def _may_go_on(self, member: Member, attempt: Attempt, kind: str, message: dict[str, Any]) -> bool:
        """Note what a worker that waits is about to do, or has done; return whether it may go on."""
        match kind:
            case "unsupported":
                self.coarse = message["why"]
                return True
            case "changes":
                self._note_written([self.folder.inside(message["path"])])
                return True
            case "begins":
                attempt.servers = self._servers() if member.worker.rank == 0 else {}
                return True
            case "end":
                return not self._ends(member, attempt, message["code"])
            case "step":
                self._steps(member, attempt, msgspec.convert(message, Step))
                return not self._strikes(member, "step", lambda kill: kill.nth == attempt.done_steps)
            case "commit":
                call = Call(calls.COMMIT, self.folder.inside(message["path"]) or "", "", 0, 0)
                return not self._changes(member, attempt, None, call)
            case "committed":
                attempt.done = len(attempt.calls)
                last = max(at for at, call in enumerate(attempt.calls, start=1) if call.kind == calls.COMMIT)
                until = attempt.calls[:last]
                return not self._strikes(member, "call", lambda kill: kill.when == "after" and kill.is_at(until))
            case _:  # it reads
                is_new = self.folder.is_written(os.path.relpath(message["path"], self.folder.path))
                (attempt.reads if is_new else attempt.opened).append(self._relative(message["path"]))
                return not self._strikes(member, "read", lambda kill: kill.nth == len(attempt.reads))

    def _steps(self, member: Member, attempt: Attempt, step: Step) -> None:
        attempt.restored = attempt.restored if attempt.steps else len(attempt.reads)
        attempt.steps.append(msgspec.structs.replace(step, variables={**step.variables, **attempt.servers}))
        attempt.servers = {}
        if self._is_resumed(member) and self.behind is not None and len(attempt.steps) == 1:
            attempt.begun, attempt.calls = self.behind(self._run, member.worker)
            attempt.is_behind = True
        attempt.done = len(attempt.calls)

    def _servers(self) -> dict[str, str]:
        """Return the state of the workers that take no steps."""
        others = sorted((m for m in self._members if not self._is_task(m)), key=lambda m: m.worker)
        return {f"{name} of {m.worker}": state for m in others for name, state in m.look().items()}

    def _note_written(self, paths: Iterable[str | None]) -> None:
        """Note that the run changes files of the copy, by their relative paths.

        Raises:
            StartAgain: A file is the user's own. The worker that is about to change it waits until it is killed.
        """
        for path in filter(None, paths):
            if self.coarse:
                self._run.written.add(self.name_of(path))
            if self.folder.note_written(path):
                raise StartAgain

    def _is_resumed(self, member: Member) -> bool:
        return len(self._run.attempts[member.worker]) > 1

    def _relative(self, path: str) -> str:
        return self.name_of(os.path.relpath(path, self.folder.path))

    def _release(self) -> None:
        """Let the workers of each world begin whose workers are all at the gate."""
        if self._is_resetting:
            return
        worlds: dict[tuple[str, ...], list[Member]] = {}
        for member in self._members:
            size = self._sizes.get(member.worker.role, member.replicas)
            if member.attempt is None and member.pidfd >= 0 and not member.is_killed and size == member.replicas:
                worlds.setdefault(member.world, []).append(member)
        for world in worlds.values():
            if len(world) == world[0].world_size:
                if self.coarse:
                    self._note_written(self.folder.unnoted())
                for member in sorted(world, key=lambda each: each.worker):
                    self._begin(member)

    def _begin(self, member: Member) -> None:
        attempts = self._run.attempts.setdefault(member.worker, [])
        member.attempt = Attempt(kills=self._run.kills)
        attempts.append(member.attempt)
        count = {"TORCHELASTIC_RESTART_COUNT": str(len(attempts) - 1)}  # not FLOWDIST_ATTEMPT: the agent has to know it
        self._is_first = False
        self._run_id = member.run_id
        is_task = self._is_task(member)
        member.say(variables=count, tells_steps=is_task and self._tasks is not None, is_looked_at=not is_task)

    def _stopped(self, member: Member) -> None:
        """Handle a call in front of which a worker, or a child of it, waits."""
        stop = calls.receive(member.listener) if member.listener >= 0 else None  # it was forgotten meanwhile
        if stop is None and member.is_killed and member.listener >= 0:
            with contextlib.suppress(KeyError):  # it hangs up again and again until the process is gone
                self._selector.unregister(member.listener)
        if stop is None or member.attempt is None:
            return
        if stop.call != calls.END and not stop.path.startswith("/"):
            stop.go_on()
            return
        if stop.call == calls.END:
            self._at_end(member, member.attempt, stop)
            return
        paths = self.folder.changed(stop)
        self._note_written(paths or ())
        call = Call(stop.call, *paths, stop.size, 0) if paths else None
        if call is None or not self._changes(member, member.attempt, stop, call):
            stop.go_on(is_watched=bool(paths))

    def _changes(self, member: Member, attempt: Attempt, stop: calls.Stop | None, call: Call) -> bool:
        """Note a call that changes a file of the run, or commits one; return whether a kill comes in its place."""
        self._heard = time.monotonic()
        call = call._replace(steps=attempt.done_steps or self._steps_of_job())
        if call.steps and not attempt.steps and not attempt.is_behind and self._is_resumed(member) and self.behind:
            _, attempt.calls = self.behind(self._run, member.worker)
            attempt.is_behind = True
        attempt.done = len(attempt.calls)
        attempt.calls.append(call.named(self.name_of))
        is_commit = stop is None  # the worker says itself when it has happened
        is_here = lambda kill: kill.is_at(attempt.calls) and not (is_commit and kill.when == "after")  # noqa: E731
        if self._strikes(member, "call", is_here, stop):
            return True
        self.folder.note_call(call)
        return False

    def _steps_of_job(self) -> int:
        """Return how many steps the workers have behind them, for one that takes none, such as a server."""
        return max(member.attempt.done_steps for member in self._members if member.attempt is not None)

    def _strikes(
        self, member: Member, on: str, is_here: Callable[[Kill], bool], stop: calls.Stop | None = None
    ) -> bool:
        """Carry out the next kill if it is to come here; return whether it did."""
        run, attempt, kill = self._run, member.attempt, self._due(member, on)
        if kill is None or attempt is None or not is_here(kill):
            return False
        run.kills += 1
        if stop is not None and kill.when != "before":
            path, target = self.folder.changed(stop) or ("", "")
            self.folder.note_call(Call(stop.call, path, target, stop.size, len(attempt.steps)))
            stop.carry_out(0.5 if kill.when == "half" else 1.0)
            attempt.done += kill.when == "after"
        victims = [each for each in self._members if each.attempt is not None] if kill.all_ranks else [member]
        if kill.power:
            for each in victims:
                each.stop()
            self.folder.lose_power()
        for each in victims:
            each.kill()
        if kill.size:
            self._usual.setdefault(member.worker.role, member.replicas)
            self._scale({member.worker.role: kill.size})
        return True

    def _due(self, member: Member, on: str) -> Kill | None:
        """Return the next kill, if it may come to this worker when something of this kind happens."""
        run, attempt = self._run, member.attempt
        kill = self._kills[run.kills] if run.kills < len(self._kills) else None
        if kill is None or attempt is None or member.is_killed or (kill.worker, kill.on) != (member.worker, on):
            return None
        if on == "call" and self.behind is not None and self._is_resumed(member) and not attempt.is_behind:
            return None  # the restart tidies up: a point of a save comes after a step
        return kill if run.attempts[member.worker][-1] is attempt else None

    def _at_end(self, member: Member, attempt: Attempt, stop: calls.Stop) -> None:
        """Hold a worker that ends well, and let others end, and children."""
        if not member.owns(stop.tid) or not self._ends(member, attempt, stop.size):
            stop.go_on()

    def _ends(self, member: Member, attempt: Attempt, code: int) -> bool:
        """Note that a worker is about to end with an exit code; return whether it is held, or killed."""
        if self._strikes(member, "end", lambda _: True):
            return True
        attempt.code, attempt.done = code, len(attempt.calls)
        if code == 0 and self._is_task(member):
            member.is_held = True
        elif code:
            attempt.error = member.last_words()
            if place := member.failed_at(self.folder.path):
                attempt.places["error"] = place
        return member.is_held

    def _forget(self, member: Member) -> None:
        """Forget a worker that has ended; those that waited for that may begin."""
        self._members.discard(member)
        for each in (member.pidfd, member.listener, member.link):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
        member.close()
        self._release()
