"""Choice between warm and cold workers: a fork server that dies is started again, or its workers start cold.

The death of a fork server is charged to no role, like that of the processes in `process_restarts`. Its workers die with
it, and restart by the policy of their role. This file imports nothing, because the spawner that uses it stays small.
"""

from __future__ import annotations

DEATHS_MAX = 3
PATIENCE_S = 60.0  # for the imports of a fork server; a slower one saves no time


class ForkServerUpkeep:
    """Decision whether the fork server for one set of imports is still used.

    `useless` says why it is not: its workers are started by exec (cold) from then on, for good. While it is empty, the
    spawner starts the fork server for the next worker that needs it, again if it has died.
    """

    def __init__(self) -> None:
        self.useless = ""
        self._deaths = 0

    def is_unsafe(self, why: str) -> None:
        """Give the fork server up for good: its imports left something that must not be forked, such as a thread.

        `why` says what, for the user.
        """
        self.useless = why

    def is_slow(self, patience_s: float) -> None:
        """Give the fork server up for good: its imports have taken longer than `patience_s` seconds."""
        self.useless = f"its imports take more than {patience_s:g} s"

    def died(self, how: str, *, is_ready: bool) -> None:
        """Record that the fork server died. Give it up for good if it did so during its imports, or `DEATHS_MAX` times.

        Args:
            how: How it ended, in words.
            is_ready: Its imports were done. If not, it would die again.
        """
        self._deaths += 1
        if not is_ready:
            self.useless = f"its fork server died while it imported: {how}"
        elif self._deaths >= DEATHS_MAX:
            self.useless = f"its fork server died {self._deaths} times"
