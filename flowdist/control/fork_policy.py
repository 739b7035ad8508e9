"""Choice between fork and exec: a fork server that ends is started again, or its workers are started by exec.

No budget of a role pays for the fork server, as for the processes in `process_restarts`. Its workers end with it, and
restart by their own policy. This file imports nothing, because the spawners that use it have to stay small.
"""

from __future__ import annotations

DEATHS_MAX = 3
PATIENCE_S = 60.0  # for imports; a slower fork server saves no time


class ForkServerUpkeep:
    """Restarts of the fork server for one set of imports.

    `useless` says why its workers are started by exec from now on. While it is empty, the first worker that needs the
    fork server starts it, again if it has ended.
    """

    def __init__(self) -> None:
        self.useless = ""
        self._deaths = 0

    def is_unsafe(self, why: str) -> None:
        """Give the fork server up: its imports have left something, such as a thread, that must not be forked."""
        self.useless = why

    def is_slow(self, patience_s: float) -> None:
        """Give the fork server up: its imports have taken longer than `patience_s`."""
        self.useless = f"its imports take more than {patience_s:g} s"

    def died(self, how: str, *, is_ready: bool) -> None:
        """Record its death. During its imports it would die again; later, only repeated deaths give it up.

        Args:
            how: How it ended, in words.
            is_ready: Its imports were done.
        """
        self._deaths += 1
        if not is_ready:
            self.useless = f"its fork server died while it imported: {how}"
        elif self._deaths >= DEATHS_MAX:
            self.useless = f"its fork server died {self._deaths} times"
