"""Restarts of flowdist's own processes, the agents and the controller: whether, when, and why not.

No budget of a role pays for them. A process that dies at each start has a cause that one more start does not remove,
so the number of restarts is limited.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import MS, SECOND

AGENT_RESTARTS_MAX = 5  # of one node
CONTROLLER_DEATHS_MAX = 100  # without a line of the journal between them
JOURNAL_LOST_COUNTS = 10  # a death by an unwritable journal counts as so many: the next one will not write either
CONTROLLER_PAUSE_NS = 50 * MS
JOURNAL_PAUSE_NS = SECOND  # there may be room on the disk by then


class Next(NamedTuple):
    """Decision about a process that has ended, with its reason for the terminal and the record."""

    after_ns: int | None  # time until it is started again; None: never
    because: str


class AgentUpkeep:
    """Restarts of the agent of one node. `log` is the file with its last output."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._deaths = 0  # that no fault of a plan has caused

    def taken_away(self, back_after_ns: int | None) -> Next:
        """Decide about an agent that a fault of the plan has killed, for so long; None: for good."""
        return Next(back_after_ns, "killed by a fault")

    def died(self) -> Next:
        """Decide about an agent that died by itself."""
        self._deaths += 1
        if self._deaths <= AGENT_RESTARTS_MAX:
            return Next(0, "its agent died")
        return Next(None, f"its agent died {self._deaths} times and is not started again (see {self._log})")


class ControllerUpkeep:
    """Restarts of the controller, each of which takes over from the journal (R21). `journal` is its folder."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._deaths = 0  # since it last wrote a line

    def wrote(self) -> None:
        """Record a new line of the journal: the controller works, and its deaths count anew."""
        self._deaths = 0

    def died(self, *, journal_lost: bool) -> Next:
        """Decide about a controller that died. `journal_lost`: it died because it could not write the journal."""
        self._deaths += JOURNAL_LOST_COUNTS if journal_lost else 1
        if self._deaths >= CONTROLLER_DEATHS_MAX:
            return Next(None, "the controller died again and again")
        if journal_lost:
            because = f"the journal cannot be written: is there room on the disk of {self._journal}?"
            return Next(JOURNAL_PAUSE_NS, because)
        after_ns = CONTROLLER_PAUSE_NS if self._deaths > 1 else 0
        return Next(after_ns, "the controller died: another takes over from the journal")
