"""Late orders and reports in macro mode: those of nodes that were cut off for a moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Late:
    """Orders and reports of one generation of a gang that waited for a node to connect again. All times are ns.

    Attributes:
        started: Nodes that got the order to start late: when it counts as sent.
        heard: Nodes whose report that their members run was lost: when the controller knows of it.
        stopped: Nodes that got the order to stop late: when it counts as sent.
        unheard: Members whose processes have ended, and whose agent could not report it because it is cut off.
        last_beat: By node that was killed or cut off: when it sent its last heartbeat before.
        joined: By node that was cut off for a moment: when its agent connected again.
    """

    started: dict[int, int] = field(default_factory=dict)
    heard: dict[int, int] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)
    unheard: set[int] = field(default_factory=set)
    last_beat: dict[int, int] = field(default_factory=dict)
    joined: dict[int, int] = field(default_factory=dict)
