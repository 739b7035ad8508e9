"""Records of one run of a script: by worker and attempt, its steps, its file calls and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal, NamedTuple

import msgspec

Outcome = Literal["ended", "failed", "hung"]


def is_in(path: str, paths: Container[str]) -> bool:
    """Return whether a path is one of these paths, or in a folder that is one."""
    return path in paths or any(str(parent) in paths for parent in PurePosixPath(path).parents)


class Worker(NamedTuple):
    """A worker of the job: its role and its rank in the world."""

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role}.{self.rank}"


class Step(msgspec.Struct, frozen=True):
    """A step of an optimizer, as the worker told it.

    `weights`, `optimizer` (its state), `rates`, `scale` (of gradient scalers) and `random` (by generator) are what the
    step began from, `losses` and `gradients` what came of it. `samples` are the batches that were fetched since the
    step before, each by one of the `loaders`. Digests are hexadecimal. `count` is how many steps the optimizer's own
    state counts before it. `schedule` is a digest of the schedulers of learning rates. `own` are generators that
    variables of the script have, by their names. `variables` are others: numbers as `=0.5`, and digests of collections;
    also those of workers that take no steps, when the step began: `shard.rate of ps.0`.
    """

    losses: list[str] = []
    samples: list[Any] = []
    loaders: list[str] = []
    gradients: str = ""
    weights: str = ""
    optimizer: str = ""
    rates: list[float | None] = []
    scale: list[float] = []
    random: dict[str, str] = {}
    count: int | None = None
    schedule: str = ""
    own: dict[str, str] = {}
    variables: dict[str, str] = {}


class Call(NamedTuple):
    """A file call of a worker, after `steps` steps of its attempt. Paths are relative to the folder of the run."""

    name: str
    path: str
    target: str
    size: int
    steps: int

    @property
    def kind(self) -> str:
        """Return what the call does, however the kernel spells it."""
        for short in ("write", "open", "rename", "unlink", "sync", "truncate", "mkdir", "symlink", "link"):
            if short in self.name:
                return "fsync" if short == "sync" else short
        others = {"rmdir": "unlink", "creat": "open", "sendfile": "write", "copy_file_range": "write"}
        return others.get(self.name, self.name)

    def named(self, name_of: Callable[[str], str]) -> Call:
        """Return the call with other names for its files."""
        return self._replace(path=name_of(self.path), target=name_of(self.target) if self.target else "")


def count(calls: Iterable[Call], kind: str, path: str) -> int:
    """Return how many calls of a kind there are on a path."""
    return sum((call.kind, call.path) == (kind, path) for call in calls)


@dataclass(slots=True)
class Attempt:
    """Record of one attempt of a worker.

    `reads` are the files of the run that it opened to read them, in order, the first `restored` of them before its
    first step, `opened` those that were there before the run, `looked` those that it looked at before it acted,
    `listed` the folders that it looked into. `places` are lines of the script, by what they do: `write PATH`,
    `read PATH`, `loader`, `step`. `code` is its exit code, None if it was killed, and `error` the last line about it.
    `done` is how many of the calls certainly happened, and `servers` what is to come with the next step.

    It began after so many `kills`. Of a restart, `begun` is how many steps it has behind it, and the calls that the run
    without a fault makes until then stand in front of its own, once it or its job has taken a step: it `is_behind`.
    """

    steps: list[Step] = field(default_factory=list)
    kills: int = 0
    begun: int = 0
    is_behind: bool = False
    calls: list[Call] = field(default_factory=list)
    done: int = 0
    reads: list[str] = field(default_factory=list)
    restored: int = 0
    opened: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    code: int | None = None
    error: str = ""
    servers: dict[str, str] = field(default_factory=dict)

    @property
    def done_steps(self) -> int:
        """Return how many steps the worker has behind it, those before a restart included."""
        return self.begun + len(self.steps)


@dataclass(slots=True)
class Run:
    """One run of the script, from its beginning with an empty folder to its end.

    `written` are the files that it has changed, where the kernel stops no call of it.
    """

    attempts: dict[Worker, list[Attempt]] = field(default_factory=dict)
    outcome: Outcome = "ended"
    kills: int = 0  # how many of the planned kills came
    written: set[str] = field(default_factory=set)
    waits: str = ""  # of a run that hangs: for whom, in words
    seconds: float = 0.0

    @property
    def error(self) -> str:
        """Return the error of the worker that failed last by itself; empty if none did."""
        failed = [each.error for attempts in self.attempts.values() for each in attempts if each.code]
        return failed[-1] if failed else ""

    def place(self, *whats: str) -> str:
        """Return the line of the script that did the first of these things that is known; empty if none is."""
        attempts = [each for attempts in self.attempts.values() for each in reversed(attempts)]
        return next((each.places[what] for what in whats for each in attempts if what in each.places), "")

    def reads(self) -> list[str]:
        """Return what a restart reads, that of workers with steps first, the last file first, as `place` takes it."""
        restarts = [attempt for attempts in self.attempts.values() for attempt in attempts[1:]]
        restarts.sort(key=lambda attempt: not attempt.steps)
        return [f"read {path}" for attempt in restarts for path in reversed(attempt.reads)]

    def opened_by(self, name: str) -> list[str]:
        """Return the files but for code that the last attempt of a worker has opened, the last one first, as above."""
        found = [attempts[-1] for worker, attempts in self.attempts.items() if str(worker) == name]
        paths = [path for attempt in found for path in (*attempt.opened, *attempt.reads)]
        return [f"read {path}" for path in reversed(paths) if not path.endswith((".py", ".pyc"))]

    def restore(self) -> str:
        """Return the line of the script that reads a checkpoint, or else the one that takes a step."""
        return self.place(*self.reads(), "step")
