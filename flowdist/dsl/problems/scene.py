"""Scenes: situations that the simulator plays, to show a user what goes wrong with the values of a topology."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import RoleGraph


class Scene(NamedTuple):
    """A small job and what happens to it, ready for the simulator.

    Attributes:
        graph: The job: one role of the user's with its durations and policy, on as many small nodes as it needs.
        faults: The faults, in the fault grammar.
        until_ns: Time at which the scene is over, in ns.
        beats: Each heartbeat is played by itself, because the scene is about heartbeats.
    """

    graph: RoleGraph
    faults: tuple[str, ...]
    until_ns: int
    beats: bool = False
