"""The engine that is a person: flowdist prints each order, and somebody carries it out on another host."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Mapping

from flowdist.control.fleet.values import Launch, Seen
from flowdist.engines.interface import Engine


class ByHand(Engine):
    """Engine that shows the command line of each member for a person to type on another host.

    A member is pending until it is cancelled: only the job shows that it has joined. A reference is the member's name.
    """

    name = "hand"

    def __init__(self, show: Callable[[str], object] = lambda text: print(text, file=sys.stderr, flush=True)) -> None:
        self._show = show
        self._open: set[str] = set()

    def submit(self, launch: Launch) -> str:
        """Print the command line of a member, and the hosts on which it must not start."""
        place = f"a host other than {', '.join(launch.avoid)}" if launch.avoid else "a host"
        self._show(f"{launch.member}: type on {place}: {shlex.join(launch.command)}")
        self._open.add(launch.member)
        return launch.member

    def cancel(self, reference: str) -> None:
        """Print that the member has to be ended; once."""
        if reference in self._open:
            self._open.remove(reference)
            self._show(f"{reference}: press Ctrl-C on its host")

    def signal(self, reference: str, signal: str) -> None:
        """Print which signal the member has to get."""
        if reference in self._open:
            self._show(f"{reference}: type on its host: kill -{signal} and the process id of its flowdist")

    def observe(self, references: Iterable[str]) -> Mapping[str, Seen]:
        """Return the members that are not cancelled as pending: nothing more is known."""
        return {name: Seen("pending") if name in self._open else Seen("ended") for name in references}
