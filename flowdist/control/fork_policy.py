"""Whether workers are forked: a fork server that ends is started again, or is of no use and they are started by exec.

It is not the user's, as in `upkeep`: no budget of a role is charged for it, though its workers end with it and are
restarted by their policy. This file imports nothing: the spawners that ask are small.
"""

from __future__ import annotations

DEATHS_MAX = 3
PATIENCE_S = 60.0  # for imports; whoever is slower is of no use


class ForkServerUpkeep:
    """That of one set of imports. `useless` says why its workers are started by exec from now on; empty: they are not.

    Until then it is started, and started again, with the first worker that asks for it.
    """

    def __init__(self) -> None:
        self.useless = ""
        self._deaths = 0

    def is_unsafe(self, why: str) -> None:
        """Its imports have left something that must not be forked."""
        self.useless = why

    def is_slow(self, patience_s: float) -> None:
        """Its imports have taken longer than that."""
        self.useless = f"its imports take more than {patience_s:g} s"

    def died(self, how: str, *, is_ready: bool) -> None:
        """While it imports: it would do so again. Later its workers end with it, which may have been a mishap."""
        self._deaths += 1
        if not is_ready:
            self.useless = f"its fork server died while it imported: {how}"
        elif self._deaths >= DEATHS_MAX:
            self.useless = f"its fork server died {self._deaths} times"
