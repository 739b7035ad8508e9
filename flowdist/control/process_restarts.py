"""Restarts of flowdist's own processes, the agents and the controller: whether and when, with the reason.

They are charged to no role. Too many deaths in quick succession have a cause that one more start does not remove. Time
in which the process runs makes up for them: a run of weeks is not ended by rare deaths that add up.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from typing import Literal, NamedTuple

from flowdist.control.protocol.ids import NodeName
from flowdist.graph import MINUTE, MS, SECOND

AGENT_RESTARTS_MAX = 5  # of one node, in quick succession
AGENT_FORGIVEN_NS = 10 * MINUTE  # an agent that has run for so long makes up for one death
CONTROLLER_DEATHS_MAX = 10  # in quick succession
CONTROLLER_FORGIVEN_NS = MINUTE  # as AGENT_FORGIVEN_NS
ENDING_COUNTS = 4  # a death while the operator wants the run to end counts as so many: it ends after the third
CONTROLLER_SERVED_NS = SECOND  # one that has served for so long did not die of its start: the next begins at once
CONTROLLER_PAUSE_NS = 50 * MS  # before the second restart; doubled for each further one
CONTROLLER_PAUSE_MAX_NS = 2 * SECOND
JOURNAL_PAUSE_NS = SECOND  # there may be room on the disk by then

Death = Literal["crash", "journal lost"]


class Next(NamedTuple):
    """Decision about the next start of a process that has ended. `because` is for the terminal and the record."""

    after_ns: int | None  # time until it is started again; None: never
    because: str


class _Deaths:
    """The deaths of a process in quick succession: each `forgiven_ns` for which it runs make up for one of them."""

    def __init__(self, forgiven_ns: int) -> None:
        self._forgiven_ns, self._level_ns = forgiven_ns, 0

    def add(self, lived_ns: int, count: int = 1) -> int:
        """Add a death after `lived_ns`, which counts as `count`, and return how many count now."""
        self._level_ns = max(0, self._level_ns - lived_ns) + count * self._forgiven_ns
        return -(-self._level_ns // self._forgiven_ns)


class AgentUpkeep:
    """Restarts of the agent of one node. `log` is the file with its last output, for messages."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._deaths = _Deaths(AGENT_FORGIVEN_NS)  # that no fault of a plan has caused

    def taken_away(self, back_after_ns: int | None) -> Next:
        """Return the decision about an agent that a fault killed, not counted: back in so many ns, or never."""
        return Next(back_after_ns, "killed by a fault")

    def died(self, lived_ns: int, words: str = "") -> Next:
        """Count a death of the agent after `lived_ns`, and return the decision: it starts again at once, or never."""
        deaths = self._deaths.add(lived_ns)
        died = f"its agent died of {words}" if words else "its agent died"
        if deaths <= AGENT_RESTARTS_MAX:
            return Next(0, died)
        more = f", last of {words}," if words else ""
        return Next(None, f"its agent died {deaths} times{more} and is not started again (see {self._log})")


def why_nodes_are_too_few(
    nodes: Collection[NodeName], given_up: Set[NodeName], least: int, log: str, *, others_may_join: bool
) -> str:
    """Return why the run ends for want of nodes that could ever run its job; empty: it goes on.

    `nodes` has also those that a plan of faults adds later or has killed; those `given_up` died too often, and `log` is
    the last output of the last of them. `least` is the minimum of the job until it has started, then one.
    """
    left = len(set(nodes) - given_up)
    if others_may_join or left >= least:
        return ""
    short = f"only {left} of at least {least} nodes are left" if left else "no node of this run is left"
    return f"{short}; everything was stopped (see {log})"


class ControllerUpkeep:
    """Restarts of the controller, each of which takes over from the journal (R21), in the folder `journal`."""

    def __init__(self, journal: str) -> None:
        self._journal = journal
        self._deaths = _Deaths(CONTROLLER_FORGIVEN_NS)

    def died(self, lived_ns: int, death: Death, words: str = "", *, is_ending: bool = False) -> Next:
        """Count a death of the controller, and return the decision whether and when the next one starts.

        The pause after deaths at the start grows. After one that has served there is none: it would be taken from the
        lease of agents on other hosts. After a lost journal (`death`) the next one waits for room on the disk.
        """
        deaths = self._deaths.add(lived_ns, ENDING_COUNTS if is_ending else 1)
        is_lost = death == "journal lost"
        unwritten = f"the journal cannot be written: is there room on the disk of {self._journal}?"
        if deaths >= CONTROLLER_DEATHS_MAX:
            last = f"; the last died of {words}" if words else ""
            return Next(None, unwritten if is_lost else f"the controller died again and again{last}")
        if is_lost:
            return Next(JOURNAL_PAUSE_NS, unwritten)
        died = f"the controller died of {words}" if words else "the controller died"
        pause_ns = min(CONTROLLER_PAUSE_MAX_NS, CONTROLLER_PAUSE_NS << max(0, deaths - 2))
        return Next(
            pause_ns if deaths > 1 and lived_ns < CONTROLLER_SERVED_NS else 0,
            f"{died}: another takes over from the journal",
        )
