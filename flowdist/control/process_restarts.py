"""flowdist's own processes that end: whether they are started again, when, and why not.

They are not the user's: no budget of a role is charged. What dies however often it is started has a cause that one
more start does not mend, and is given up.
"""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import MS, SECOND

AGENT_RESTARTS_MAX = 5  # of one node
CONTROLLER_DEATHS_MAX = 100  # that come to nothing
JOURNAL_LOST_COUNTS = 10  # where it could not write a line: others will not be able to, either
CONTROLLER_PAUSE_NS = 50 * MS
JOURNAL_PAUSE_NS = SECOND  # there may be room on the disk by then


class Next(NamedTuple):
    """What becomes of a process that has ended, and why: in words, for the terminal and the record."""

    after_ns: int | None  # it is started again so long from now; None: never
    because: str


class AgentUpkeep:
    """The agent of one node, with all that runs there. `log` is where its last words are."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._deaths = 0  # that nobody has asked for

    def taken_away(self, back_after_ns: int | None) -> Next:
        """By a fault of the plan, which says for how long; None: for good."""
        return Next(back_after_ns, "it was killed by a fault")

    def died(self) -> Next:
        """Nobody has asked for that."""
        self._deaths += 1
        if self._deaths <= AGENT_RESTARTS_MAX:
            return Next(0, "its agent died")
        return Next(None, f"its agent died {self._deaths} times and is not started again (see {self._log})")


class ControllerUpkeep:
    """The controller, of which the next takes over from the journal (R21). `journal` is the folder that it is in."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._deaths = 0  # since it last wrote a line

    def wrote(self) -> None:
        """A line of the journal: that life came to something."""
        self._deaths = 0

    def died(self, *, journal_lost: bool) -> Next:
        """`journal_lost`: since it could not write a line."""
        self._deaths += JOURNAL_LOST_COUNTS if journal_lost else 1
        if self._deaths >= CONTROLLER_DEATHS_MAX:
            return Next(None, "the controller died again and again")
        if journal_lost:
            because = f"the journal cannot be written: is there room on the disk of {self._journal}?"
            return Next(JOURNAL_PAUSE_NS, because)
        after_ns = CONTROLLER_PAUSE_NS if self._deaths > 1 else 0
        return Next(after_ns, "the controller died: another takes over from the journal")
