"""The agent's side of the learned preload: which fork server the workers of each role are forked from.

The first worker of a replica records which modules it has imported by its first step. The agent then has the spawner
start a fork server that imports them too, while the workers run on. Once that server is ready, later workers are forked
from it. If one of the modules may not be imported there, a further server is tried without it. No start waits for any
of this. Only the first start of a run waits for modules that an earlier run has learned, or that the source of the
script shows when nothing is learned yet: its workers would import them as well, each by itself.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from flowdist.graph import RoleGraph, RoleSpec
from flowdist.runtime.left_files import read_from
from flowdist.runtime.preload.cache import ProfileCache, key_of, script_of
from flowdist.runtime.preload.profile import (
    FILE_BYTES_MAX,
    MODULES_MAX,
    RECORDING,
    UNKNOWN,
    Changes,
    Profile,
    Recording,
    read_recording,
    short,
    without,
)
from flowdist.runtime.processes.spawn_protocol import ForkServerSpec, Learn, Learned, Request, Retire
from flowdist.runtime.worker_env.environment import per_worker_variables

MODULES_MIN = 20  # fewer are imported by each worker sooner than a fork server of its own is worth
TRIALS_MAX = 5
FOLDERS_MAX = 8  # of workers whose recordings are awaited
LOOK_S, LOOK_S_MAX = 0.5, 10.0  # seconds between two looks for recordings: a tenth of the time so far


@dataclass(slots=True)
class _Role:
    """One role, and how far its learned preload is."""

    spec: RoleSpec
    key: str
    profile: Profile
    base: ForkServerSpec  # the fork server with nothing learned
    used: ForkServerSpec | None = None  # the one for later workers; None: `base`
    tried: ForkServerSpec | None = None  # one that is not known to be usable yet
    trials: int = 0
    folders: list[Path] = field(default_factory=list)  # of workers that record
    is_recorded: bool = False  # nothing more is learned in this run


class LearnedPreload:
    """The learned preload of all roles on one node.

    Args:
        graph: The job.
        cache: Keeps what is learned for later runs; None: nothing is learned.
        loop: The agent's event loop.
        send: Sends the spawner a request.
        adopt: Called with each learned fork server that is ready.
    """

    def __init__(
        self,
        graph: RoleGraph,
        cache: ProfileCache | None,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[Request], None],
        adopt: Callable[[ForkServerSpec], None],
    ) -> None:
        self._graph, self._cache, self._loop, self._send, self._adopt = graph, cache, loop, send, adopt
        self._roles: dict[str, _Role] = {}
        self._in_use: dict[str, ForkServerSpec] = {}  # by role
        self._looking_since_s: float | None = None

    def server_for(self, spec: RoleSpec, base: ForkServerSpec) -> ForkServerSpec:
        """Return the fork server for a worker of the role: `base`, or one that has learned modules as well."""
        role = self._role(spec, base)
        server = base
        if role is not None and role.used is not None and role.used.without_learned() == base:
            server = role.used
        self._in_use[spec.name] = server
        return server

    def _role(self, spec: RoleSpec, base: ForkServerSpec) -> _Role | None:
        """Return what is learned of a role, at first from the cache; None if nothing may be learned."""
        if not spec.learned_preload or self._cache is None:
            return None
        if spec.name not in self._roles:
            key = key_of(spec, sys.executable, sys.path)
            profile = self._cache.load(key) or Profile(script_of(spec), "")
            role = self._roles[spec.name] = _Role(spec, key, profile, base, is_recorded=bool(profile.refused))
            modules, changed = profile.modules, profile.changed
            if not profile.learned_on:
                modules = spec.first_imports.modules
                changed = tuple((name, UNKNOWN) for name in spec.first_imports.may_set)
            if modules and not profile.refused:
                role.used = _with_learned(base, spec, modules, changed)
        self._roles[spec.name].base = base
        return self._roles[spec.name]

    def records(self, spec: RoleSpec, local_rank: int, folder: Path) -> bool:
        """Return whether a worker that is about to start has to leave a recording in its folder."""
        role = self._roles.get(spec.name)
        if role is None or local_rank != 0 or role.is_recorded or role.tried is not None:
            return False
        role.folders = [*role.folders, folder][-FOLDERS_MAX:]
        if self._looking_since_s is None:
            self._looking_since_s = self._loop.time()
            self._loop.call_later(LOOK_S, self._look)
        return True

    def _look(self) -> None:
        """Handle the recordings that workers have left. Look again later for those that are missing."""
        for role in self._roles.values():
            for folder in list(role.folders):
                data = read_from(folder / RECORDING, 0, FILE_BYTES_MAX)
                if data is not None and folder in role.folders:
                    role.folders.remove(folder)
                    self._handle_recording(role, read_recording(data))
        if not any(role.folders for role in self._roles.values()):
            self._looking_since_s = None
        elif self._looking_since_s is not None:
            waited_s = self._loop.time() - self._looking_since_s
            self._loop.call_later(min(max(LOOK_S, waited_s / 10), LOOK_S_MAX), self._look)

    def _handle_recording(self, role: _Role, recording: Recording | None) -> None:
        if recording is None:
            _say(role, "what its worker has recorded for the learned preload cannot be read")
        elif not role.is_recorded and role.tried is None:
            role.is_recorded = recording.at_step
            known = role.used.learned if role.used is not None else ()
            left_out = [name for name, _ in role.profile.left_out]
            new = [name for name in without(recording.modules, left_out) if name not in {*known}]
            if role.is_recorded:
                role.folders.clear()
            if len(new) >= MODULES_MIN:
                changed = tuple(sorted({**dict(role.profile.changed), **dict(recording.changed)}.items()))
                self._try(role, (*known, *new)[:MODULES_MAX], changed)

    def _try(self, role: _Role, modules: Sequence[str], changed: Changes) -> None:
        role.tried = _with_learned(role.base, role.spec, modules, changed)
        self._send(Learn(role.tried))

    def handle_answer(self, answer: Learned) -> None:
        """Handle the end of a trial: use the fork server for later workers, or go on without the modules it refuses."""
        for role in self._roles.values():
            if answer.server not in (role.tried, role.used):
                continue
            if answer.unsafe and answer.server == role.used and not role.profile.learned_on:
                role.used = None  # what workers really import is recorded
                _say(role, f"the learned preload begins without {', '.join(answer.server.learned)}: {answer.unsafe}")
            elif answer.unsafe:
                self._leave_out(role, answer)
            elif answer.server == role.tried:
                role.used, role.tried = answer.server, None
                self._save(role, answer.imported, answer.server.changed)
                self._use(role, answer.server)

    def _use(self, role: _Role, server: ForkServerSpec) -> None:
        """Fork later workers from a server that is ready. The one before ends with its last worker."""
        before = self._in_use.get(role.spec.name)
        self._in_use[role.spec.name] = server
        self._adopt(server)
        if before is not None and before not in self._in_use.values():
            self._send(Retire(before))

    def _leave_out(self, role: _Role, answer: Learned) -> None:
        """Try a server without the modules that were refused; if that leads nowhere, learn nothing for the script."""
        role.used = role.used if role.used != answer.server else None
        role.tried = None
        role.trials += 1
        refused = dict(answer.refused)
        for name, why in answer.refused:
            _say(role, f"the learned preload leaves {name} out: {why}")
        left_out = {**dict(role.profile.left_out), **refused}
        role.profile = msgspec.structs.replace(role.profile, left_out=tuple(left_out.items()))
        modules = without(answer.server.learned, left_out)
        if role.trials == TRIALS_MAX - 1 and refused:  # those before the first refused one have passed already
            passed = answer.server.learned[: answer.server.learned.index(next(iter(refused)))]
            modules = tuple(name for name in modules if name in passed)
        if not refused or role.trials >= TRIALS_MAX:
            _say(role, f"nothing is preloaded but {', '.join(role.spec.preload)}: {answer.unsafe}")
            self._save(role, (), answer.server.changed, refused=short(answer.unsafe))
        elif len(modules) < MODULES_MIN:
            self._save(role, (), answer.server.changed)
        else:
            self._try(role, modules, answer.server.changed)

    def _save(self, role: _Role, modules: tuple[str, ...], changed: Changes, refused: str = "") -> None:
        today = datetime.date.today().isoformat()
        role.profile = Profile(role.profile.script, today, modules, role.profile.left_out, changed, refused)
        if self._cache is not None:
            self._cache.save(role.key, role.profile)


def _with_learned(base: ForkServerSpec, spec: RoleSpec, modules: Sequence[str], changed: Changes) -> ForkServerSpec:
    """Return the fork server `base` with learned modules, for the workers of a role."""
    names = per_worker_variables(spec)
    return msgspec.structs.replace(base, learned=tuple(modules), per_worker=names, changed=changed)


def _say(role: _Role, text: str) -> None:
    """Print a line about a role for the log of the node."""
    print(f"flowdist: {role.spec.name}: {text}", file=sys.stderr, flush=True)
