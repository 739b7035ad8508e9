"""The processes of flowdist that an agent depends on, and which of them stand still.

A stopped process answers nothing and breaks no connection: without a look at its state it goes unnoticed. The agent
itself is watched by its guardian (`lease_watch`).
"""

from __future__ import annotations

from collections.abc import Set

from flowdist.runtime.processes.process_states import children_of, state_of


class Relatives:
    """The guardian and the spawner of an agent, and what the spawner has started besides workers.

    Args:
        guardian: The process id of the guardian.
        spawner: That of the spawner; 0: it is not known, and not watched.
    """

    def __init__(self, guardian: int, spawner: int) -> None:
        self._guardian, self._spawner = guardian, spawner

    def stopped(self, workers: Set[int]) -> str:
        """Return which of them are stopped, in words with their numbers; empty if none is.

        Args:
            workers: The process ids of the workers, which are none of flowdist's own processes.
        """
        watched = {self._guardian: "its guardian", self._spawner: "its spawner"}
        watched |= {pid: "its prefix or store" for pid in children_of(self._spawner) if pid not in workers}
        found = [f"{name} (pid {pid})" for pid, name in watched.items() if pid and state_of(pid) == "stopped"]
        return ", ".join(found)

    def check_spawner(self) -> None:
        """Check that the spawner can kill workers, before that is asked of it.

        Raises:
            RuntimeError: It is stopped. The agent ends then, so that the guardian kills the whole node: it must not
                outlive its lease (R19).
        """
        if self._spawner and state_of(self._spawner) == "stopped":
            raise RuntimeError(f"the spawner (pid {self._spawner}) is stopped, and cannot kill workers")
