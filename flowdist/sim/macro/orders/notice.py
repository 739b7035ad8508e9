"""Notice to the gang of macro mode that it has to leave a node in order, because of a drain or a preemption (R14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class Notice:
    """Request to the members of a generation to stop at one step. `departure` has the timeline. Times are ns.

    Attributes:
        kind: The kind of the first departure. It decides what follows when the notice ends.
        because: The reason, as a sentence for people.
        nodes: The nodes.
        heard: From when on the agents know of it. A process that ends from then on has stopped, and not failed (R16).
        due: When the gang has to have left.
        finish: Ends the notice at the given time, and restarts the gang elsewhere; nothing if it has ended.
        drop: Ends the notice because an incident stops the gang anyway.
        step: The step at which all members stop; None: none is agreed on, or the members do not know it yet.
        told: When the members learned of that step.
        has_left: The members have reached that step.
    """

    kind: Literal["drained", "preempted"]
    because: str
    nodes: dict[int, None]
    heard: int
    due: int
    finish: Callable[[int], None]
    drop: Callable[[], None]
    step: int | None = None
    told: int = 0
    has_left: bool = False
