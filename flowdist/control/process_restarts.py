"""Restarts of flowdist's own processes, the agents and the controller: decisions whether and when, with the reason.

They are charged to no role. A process that dies at each start has a cause that one more start does not remove, so the
number of restarts is limited. The supervisor asks, and carries out the decisions.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import MS, SECOND

AGENT_RESTARTS_MAX = 5  # of one node
CONTROLLER_DEATHS_MAX = 100  # without a line of the journal between them
JOURNAL_LOST_COUNTS = 10  # a death by an unwritable journal counts as so many: the next controller fails as well
CONTROLLER_PAUSE_NS = 50 * MS
JOURNAL_PAUSE_NS = SECOND  # there may be room on the disk by then


class Next(NamedTuple):
    """Decision about the next start of a process that has ended. `because` is for the terminal and the record."""

    after_ns: int | None  # time until it is started again; None: never
    because: str


class AgentUpkeep:
    """Restarts of the agent of one node. `log` is the file with its last output, for messages."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._deaths = 0  # that no fault of a plan has caused

    def taken_away(self, back_after_ns: int | None) -> Next:
        """Return the decision about an agent that a fault killed on purpose. Such deaths are not counted.

        `back_after_ns` is the time until the fault brings the node back (ns). None: never.
        """
        return Next(back_after_ns, "killed by a fault")

    def died(self) -> Next:
        """Count a death of the agent by itself, and return the decision.

        The agent starts again at once, `AGENT_RESTARTS_MAX` times at most.
        """
        self._deaths += 1
        if self._deaths <= AGENT_RESTARTS_MAX:
            return Next(0, "its agent died")
        return Next(None, f"its agent died {self._deaths} times and is not started again (see {self._log})")


class ControllerUpkeep:
    """Restarts of the controller, each of which takes over from the journal (R21).

    `journal` is the folder of the journal, for messages.
    """

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._deaths = 0  # since it last wrote a line

    def wrote(self) -> None:
        """Record that the controller wrote a line of the journal: it works, and its deaths are counted from 0 again."""
        self._deaths = 0

    def died(self, *, journal_lost: bool) -> Next:
        """Count a death of the controller, and return the decision whether and when the next one starts.

        `journal_lost`: it died because it could not write the journal. The next one waits for room on the disk then.
        """
        self._deaths += JOURNAL_LOST_COUNTS if journal_lost else 1
        if self._deaths >= CONTROLLER_DEATHS_MAX:
            return Next(None, "the controller died again and again")
        if journal_lost:
            because = f"the journal cannot be written: is there room on the disk of {self._journal}?"
            return Next(JOURNAL_PAUSE_NS, because)
        after_ns = CONTROLLER_PAUSE_NS if self._deaths > 1 else 0
        return Next(after_ns, "the controller died: another takes over from the journal")
