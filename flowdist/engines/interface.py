"""The interface of an engine, and the values that cross it.

All methods may block for as long as the engine's own commands take: a driver calls them outside of its event loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from flowdist.control.fleet.values import Launch, Seen
from flowdist.dsl.problems.problem import Problem
from flowdist.dsl.read.fields import Arguments
from flowdist.errors import FlowdistError
from flowdist.graph import RoleGraph

CANNOT = "FD182"  # the code of an error: the engine cannot honour an argument of the topology
DIFFERS = "FD336"  # the code of a warning: the engine honours an argument in another way


class EngineFailed(FlowdistError):
    """Error of an engine that did not carry out an order, or did not answer. The order may be repeated later."""

    exit_code = 1


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

    @property
    def name(self) -> str:
        """The word of `--on` for this engine."""

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
