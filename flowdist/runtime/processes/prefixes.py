"""The spawner's side of the prefixes: one process for each PrefixSpec, which becomes the template of its workers.

Prepare or the first worker starts it, and workers wait for the script's split. If it must not be forked, they start by
exec: until then the script has done nothing visible. A prefix is run anew if what it has read has changed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from flowdist.control.fork_policy import PATIENCE_S, PrefixUpkeep
from flowdist.runtime.processes.prefix_process import Prefix, Template
from flowdist.runtime.processes.spawn_protocol import (
    Answer,
    Ended,
    PrefixSpec,
    Prepared,
    Respawned,
    Signal,
    Spawn,
    Spawned,
    SpawnRefused,
    StartedCold,
    signal_name,
)

LOOK_S = 0.5  # how often it is looked at whether a script waits for something


class Prefixes:
    """All prefixes of a node, and the workers that wait for them or were forked by them.

    `answer` sends an answer to the agent; `start` starts a worker by exec and answers. The selector has Templates as
    data.
    """

    def __init__(
        self, selector: selectors.BaseSelector, answer: Callable[[Answer], None], start: Callable[[Spawn], None]
    ) -> None:
        self._selector, self._answer, self._start = selector, answer, start
        self._prefixes: dict[PrefixSpec, Prefix] = {}
        self._stale: list[Prefix] = []  # end with their last worker
        self._upkeep: defaultdict[PrefixSpec, PrefixUpkeep] = defaultdict(PrefixUpkeep)
        self._reported_cold: dict[PrefixSpec, None] = {}  # for these StartedCold was answered
        self._preparing: PrefixSpec | None = None  # a Prepare that is not answered yet
        self._again: set[int] = set()  # workers that are forked anew
        self._stopped: set[int] = set()  # workers of templates that were to stop: they are not started anew

    def prepare(self, spec: PrefixSpec) -> None:
        """Start a prefix before the first worker asks for it; the agent sends no second request before the answer.

        The agent gets Prepared when the script has come to its split, or the workers are known to start cold.
        """
        self._preparing = spec
        self._ensure_started(spec)
        prefix = self._prefixes.get(spec)
        if prefix is None or prefix.main.is_ready:
            self._answer_prepared(spec)

    def _answer_prepared(self, spec: PrefixSpec) -> None:
        if self._preparing == spec:
            self._preparing = None
            prefix = self._prefixes.get(spec)
            self._answer(Prepared(prefix is not None and prefix.has_torch))

    def _ensure_started(self, spec: PrefixSpec) -> None:
        """Start the prefix, unless it runs already or is known to be unusable. A failed start is no error here."""
        if spec not in self._prefixes and not self._upkeep[spec].useless:
            with contextlib.suppress(OSError, ValueError):  # exec will report what is wrong
                self._prefixes[spec] = Prefix(spec, self._selector)

    def _all(self) -> list[Prefix]:
        return [*self._prefixes.values(), *self._stale]

    def _owner(self, id: int) -> Template | None:
        """Return the template that runs a worker, or was asked to fork it; None if there is none."""
        templates = [template for prefix in self._all() for template in prefix.templates]
        return next((template for template in templates if id in template.running), None)

    def spawn(self, request: Spawn) -> None:
        """Have a worker forked from its prefix, which is started if needed, now or once it has come to its split.

        The worker is started by exec if the request names no prefix, or the prefix cannot be started or was given up.
        Once for each prefix that was given up, the agent gets StartedCold.
        """
        if not self._fork(request):
            self._start(request)

    def _fork(self, request: Spawn) -> bool:
        spec = request.prefix
        if spec is None:
            return False
        self._ensure_started(spec)
        prefix = self._prefixes.get(spec)
        if prefix is None:
            reason = self._upkeep[spec].useless
            if reason and request.store is None and spec not in self._reported_cold:
                self._reported_cold[spec] = None
                self._answer(StartedCold(request.id, reason))
            return False
        if not prefix.main.is_ready:
            prefix.waiting[request.id] = request
            return True
        if request.store is not None:
            return prefix.main.spawn(request)
        if self._upkeep[spec].has_late_conflict:
            return (prefix.plain or prefix.main).spawn(request)
        template = prefix.ranks.get(spec.rank_of(request.env))
        if template is None or template.words != request.argv:  # as with the folder of its attempt among its arguments
            template = prefix.main
        return template.spawn(request)

    def signal(self, request: Signal) -> bool:
        """Pass a signal on to the worker's template, False if none has it. A waiting worker misses it: see `cancel`."""
        template = self._owner(request.id)
        if template is not None:
            self._stopped.add(request.id)
            template.link.send("signal", request.id, request.number)
        return template is not None or any(request.id in prefix.waiting for prefix in self._all())

    def cancel(self, id: int) -> None:
        """Drop a worker that waits for its prefix, or will have to, and answer as if SIGTERM had ended it; no other."""
        if self._owner(id) is not None:
            self._stopped.add(id)
        for prefix in self._prefixes.values():
            if prefix.waiting.pop(id, None) is not None:
                self._drop(id)

    def _drop(self, id: int) -> None:
        self._answer(Spawned(id, 0))
        self._end(id, -signal.SIGTERM)

    def _end(self, id: int, code: int) -> None:
        self._stopped.discard(id)
        self._answer(Ended(id, code))

    def receive(self, template: Template) -> None:
        """Handle a message of a template, or its end, and pass on to the agent what concerns workers."""
        received = template.link.receive()
        if received is None and template not in (template.prefix.main, template.prefix.plain):
            self._end_workers([template])
            template.running.clear()
            template.prefix.drop(template)
        elif received is None:
            self._handle_death(template.prefix)
        else:
            message, fd = received
            self._handle(template, message, fd)

    def _handle(self, template: Template, message: tuple[Any, ...], fd: int | None) -> None:
        prefix = template.prefix
        match message:
            case ("ready", reason, has_torch, _):
                self._handle_split(template, reason, has_torch)
            case ("cold", reason):
                self._handle_cold(template, reason)
            case ("plain",) if fd is not None:
                prefix.add(fd)
            case ("rank", id) if fd is not None:
                prefix.add(fd, template.running[id][1])
            case ("bare", id, reason):
                _say(f"{_replica(template.running[id][1])} restarts from the split of all ranks: {reason}")
            case ("spawned", id, pid):
                template.running[id] = pid, template.running[id][1]
                is_again = id in self._again
                self._again.discard(id)
                self._answer(Respawned(id, pid) if is_again else Spawned(id, pid, prefix.has_torch))
            case ("refused", id, detail):
                del template.running[id]
                self._answer(SpawnRefused(id, detail))
                self._end_if_unused(template)
            case ("ended", id, code):
                if id in template.running:
                    del template.running[id]
                    self._end(id, code)
                    self._end_if_unused(template)
            case ("stale", id, why):
                _, request = template.running.pop(id)
                if id in self._stopped:
                    self._drop(id)
                    self._end_if_unused(template)
                else:
                    self._handle_stale(template, request, why)
            case ("again", id):
                self._fork_again(template, id)
            case _:
                raise TypeError(f"not from a template: {message}")

    def _handle_split(self, template: Template, reason: str, has_torch: bool) -> None:
        prefix = template.prefix
        template.is_ready = True
        if template in (prefix.main, prefix.plain):
            prefix.has_torch = has_torch
        if template is prefix.main:
            _say(f"the script has come to its split: {reason}")
            self._start_waiting(prefix)

    def _handle_cold(self, template: Template, reason: str) -> None:
        prefix = template.prefix
        if prefix.main.is_ready or prefix.plain is not None:
            _say(f"workers import by themselves what torch imports late: {reason}")
        if template is prefix.main:
            self._give_up(prefix, lambda upkeep: upkeep.is_unsafe(reason))

    def _handle_stale(self, template: Template, request: Spawn, why: str) -> None:
        """Start a worker that a template cannot fork any more: a file has changed that it has read, for example."""
        prefix = template.prefix
        if template is prefix.main or template is prefix.plain:
            self._run_anew(prefix, request, why)
            return
        _say(f"{why}: {_replica(request)} restarts from the split of all ranks")
        prefix.drop(template)
        self.spawn(request)

    def _start_waiting(self, prefix: Prefix) -> None:
        """Start the workers that wait for a prefix, which is at its split or was given up."""
        waiting, prefix.waiting = prefix.waiting, {}
        for request in waiting.values():
            self.spawn(request)
        self._answer_prepared(prefix.spec)

    def _run_anew(self, prefix: Prefix, request: Spawn, why: str) -> None:
        """Run a prefix anew for a worker, because the script may do something else now."""
        if self._prefixes.get(prefix.spec) is prefix:
            _say(f"{why}: the script is run anew up to its split")
            del self._prefixes[prefix.spec]
            self._stale.append(prefix)
        self.spawn(request)
        self._end_if_stale(prefix)

    def _fork_again(self, template: Template, id: int) -> None:
        """Fork a worker anew from the template without late imports, of which it has set a variable."""
        _, request = template.running.pop(id)
        self._upkeep[template.prefix.spec].has_late_conflict = True
        if id in self._stopped:
            self._end(id, -signal.SIGTERM)
            return
        self._again.add(id)
        if not (template.prefix.plain or template.prefix.main).spawn(request):
            self._again.discard(id)
            self._end(id, -signal.SIGKILL)

    def seconds_until_deadline(self) -> float | None:
        """Return the seconds until `abandon_slow` has to be called; None if every script has come to its split."""
        times = [prefix.deadline_s for prefix in self._prefixes.values() if not prefix.main.is_ready]
        return min(LOOK_S, max(0.0, min(times) - time.monotonic())) if times else None

    def abandon_slow(self) -> None:
        """Kill the prefixes that take too long, and start the workers that wait for them without them."""
        for prefix in list(self._prefixes.values()):
            if prefix.main.is_ready:
                continue
            if prefix.deadline_s <= time.monotonic():
                self._give_up(prefix, lambda upkeep: upkeep.is_slow(PATIENCE_S))
            elif prefix.is_waiting():
                self._give_up(prefix, lambda upkeep: upkeep.is_unsafe("it waits before it asks for its rank"))

    def _give_up(self, prefix: Prefix, note: Callable[[PrefixUpkeep], None]) -> None:
        """Kill a prefix without forks and start its waiting workers by exec, or without late imports if they failed."""
        if not prefix.promote_plain():
            note(self._upkeep[prefix.spec])
            self._remove(prefix)
        self._start_waiting(prefix)

    def _handle_death(self, prefix: Prefix) -> None:
        """Kill the workers of a prefix of which a template has died, and report them to the agent as ended by SIGKILL.

        Without their parent nothing could report their exit codes. If the process died before its split, it has no
        workers, and those that wait for it are started by exec.
        """
        is_ready, templates = prefix.main.is_ready, prefix.templates
        code = self._remove(prefix)
        how = f"signal {signal_name(code)}" if code < 0 else f"exit {code}"
        self._upkeep[prefix.spec].died(how, is_ready=is_ready)
        self._end_workers(templates)
        self._start_waiting(prefix)

    def _end_workers(self, templates: list[Template]) -> None:
        """Kill the workers of templates that have died, and report them to the agent as ended by SIGKILL."""
        for id, (pid, _) in [worker for template in templates for worker in template.running.items()]:
            if pid:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            else:
                self._answer(Spawned(id, 0))
            self._end(id, -signal.SIGKILL)

    def _end_if_unused(self, template: Template) -> None:
        if template in template.prefix.left and not template.running:
            template.prefix.drop(template)
        self._end_if_stale(template.prefix)

    def _end_if_stale(self, prefix: Prefix) -> None:
        if prefix in self._stale and not any(template.running for template in prefix.templates):
            self._stale.remove(prefix)
            prefix.end()

    def _remove(self, prefix: Prefix) -> int:
        """Forget a prefix and kill its process; return the exit code of the process."""
        if prefix in self._stale:
            self._stale.remove(prefix)
        elif self._prefixes.get(prefix.spec) is prefix:
            del self._prefixes[prefix.spec]
        return prefix.end()


def _replica(request: Spawn) -> str:
    return request.env.get("FLOWDIST_REPLICA", "a worker")


def _say(text: str) -> None:
    """Print a line for the log of the node."""
    print(f"flowdist: {text}", file=sys.stderr, flush=True)
