"""Choice between warm and cold workers: a prefix that dies is run again, or its workers start cold.

Its death is charged to no role. This file imports nothing, because the spawner that uses it stays small.
"""

from __future__ import annotations

DEATHS_MAX = 3
PATIENCE_S = 60.0  # until the split; a script that goes on longer by itself is run by each worker


class PrefixUpkeep:
    """Decision whether the prefix of one command is still used.

    `useless` says why it is not: its workers are started by exec (cold) from then on, for good. While it is empty, the
    spawner runs the prefix for the next worker that needs it, again if it has died. `has_late_conflict` says that the
    script does not go together with late imports: it sets a variable that they have read.
    """

    def __init__(self) -> None:
        self.useless = ""
        self.has_late_conflict = False
        self._deaths = 0

    def is_unsafe(self, why: str) -> None:
        """Give the prefix up for good: the script has left something that must not be forked, as `why` says."""
        self.useless = why

    def is_slow(self, patience_s: float) -> None:
        """Give the prefix up for good: the script has not come to its split within `patience_s` seconds."""
        self.useless = f"it runs for more than {patience_s:g} s before it asks for its rank"

    def died(self, how: str, *, is_ready: bool) -> None:
        """Record that the prefix died. Give it up for good if it died before its split, or `DEATHS_MAX` times."""
        self._deaths += 1
        if not is_ready:
            self.useless = f"its process ended before it asked for its rank: {how}"
        elif self._deaths >= DEATHS_MAX:
            self.useless = f"its template died {self._deaths} times"
