"""The interface of an engine, and the values that cross it.

All methods may block for as long as the engine's own commands take: a driver calls them outside of its event loop.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from flowdist.control.fleet.values import Launch, Pool, Seen
from flowdist.dsl.problems.problem import Problem
from flowdist.dsl.read.fields import Arguments
from flowdist.engines.pools import pools_of
from flowdist.errors import FlowdistError
from flowdist.graph import SECOND, RoleGraph

CANNOT = "FD182"  # the code of an error: the engine cannot honour an argument of the topology
DIFFERS = "FD336"  # the code of a warning: the engine honours an argument in another way


class EngineFailed(FlowdistError):
    """Error of an engine that did not carry out an order, or did not answer. The order may be repeated later."""

    exit_code = 1


def refuse_options(words: Sequence[str]) -> None:
    """Raise FlowdistError if there are options for an engine that has none."""
    if words:
        raise FlowdistError(f"-o {words[0]}: no engine reads it", help="write --on slurm, or leave -o out")


class Topic(NamedTuple):
    """A topology as an engine looks at it for problems: its graph, and the places of its arguments."""

    graph: RoleGraph
    arguments: Arguments

    def problem(self, role: str, argument: str, message: str, help: str, *, is_error: bool = True) -> Problem:
        """Return the problem that the engine cannot honour an argument; a warning unless `is_error`: it cannot run.

        `role` is empty for the topology's own arguments; `argument` is a name such as `grace` or
        `restart.max_restarts`; `message` comes without the role; `help` says what to write instead.
        """
        place = self.arguments.place(role, argument)
        text = f"{self.arguments.owner(role)}: {message}"
        return Problem(CANNOT if is_error else DIFFERS, text, help, place, "error" if is_error else "warning")


class Engine(Protocol):
    """An engine. A reference is the engine's own name of a member, such as the number of a Slurm job."""

    name: str  # the word of `--on` for this engine
    notice_ns: int = 60 * SECOND  # how long before the end of its time a member is told of it

    @classmethod
    def find_problems(cls, topic: Topic, words: Sequence[str]) -> list[Problem]:
        """Return what the engine cannot honour of a topology; FlowdistError if a text of `-o` in `words` is wrong."""
        refuse_options(words)
        return []

    @classmethod
    def employ(cls, words: Sequence[str], roles: Sequence[str], folder: str) -> Engine:
        """Return the engine for a job with these roles; commands run in `folder`. FlowdistError as `find_problems`."""
        refuse_options(words)
        return cls()

    def pools(self, graph: RoleGraph) -> list[Pool]:
        """Return the pools of members of a job, as the engine's options ask for them; Unsized as for `pools_of`."""
        return pools_of(graph, {}, {})

    def script(self, launch: Launch) -> str:
        """Return what starts a member, for people to read: a script, or its command line."""
        return shlex.join(launch.command) + "\n"

    def controller_script(self, title: str, command: Sequence[str], logs: str) -> str:
        """Return the script of a job in which the controller is to run; empty: it runs in this process."""
        return ""

    def start_controller(self, script: str) -> str:
        """Submit a controller's job, and return what the engine calls it; EngineFailed if refused."""
        raise EngineFailed(f"{self.name} has no jobs for controllers")

    def own_job(self) -> str:
        """Return what the engine calls the job in which this process runs."""
        raise EngineFailed(f"{self.name} has no jobs for controllers")

    def submit(self, launch: Launch) -> str:
        """Order the start of a member, perhaps much later, and return its reference; EngineFailed if refused."""

    def cancel(self, reference: str) -> None:
        """Order the end of a member: SIGTERM, and time to leave the job; nothing if over. May raise EngineFailed."""

    def signal(self, reference: str, signal: str) -> None:
        """Send a signal, such as `USR1`, to a member; nothing if it does not run. May raise EngineFailed."""

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return what has become of each member; one that the engine no longer knows is over.

        EngineFailed if the engine does not answer, so that nothing is known.
        """
