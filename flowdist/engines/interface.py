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
        """Return the problem that the engine cannot honour an argument.

        Args:
            role: Name of the role; empty: an argument of the topology itself.
            argument: Name of the argument, such as `grace` or `restart.max_restarts`.
            message: What the engine cannot do, without the name of the role.
            help: What the user can write instead.
            is_error: Whether the topology cannot run on the engine; else the problem is a warning.
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
        """Order the start of a member and return its reference. The member may start much later.

        EngineFailed: The engine refuses the member, or does not answer.
        """

    def cancel(self, reference: str) -> None:
        """Order the end of a member: one that runs gets SIGTERM and time to leave the job. One that is over stays over.

        EngineFailed: The engine does not answer.
        """

    def signal(self, reference: str, signal: str) -> None:
        """Send a signal, such as `USR1`, to a member that runs. Nothing happens if it does not run.

        EngineFailed: The engine does not answer.
        """

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return what has become of each member. A reference that the engine no longer knows is over.

        EngineFailed: The engine does not answer, so that nothing is known.
        """
