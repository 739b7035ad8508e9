"""Repeated failures on a node, for which a replica avoids it or it is cordoned (R22).

A failure is a tuple of its time (ns), its kind, the replica and the node, such as `PastFailure`. Macro mode uses
numbers for replicas and nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from flowdist.graph import JobOptions

Past = TypeVar("Past", bound=tuple[int, str, object, object])
Node = TypeVar("Node")


def recent(failures: Iterable[Past], now: int, options: JobOptions) -> list[Past]:
    """Return the failures that still count: those less than `bad_node_window_ns` before `now` (ns)."""
    since = now - options.bad_node_window_ns
    return [past for past in failures if past[0] > since]


def repeated(failures: Iterable[tuple[int, str, object, Node]], least: int) -> list[Node]:
    """Return the nodes on which at least `least` of these failures are of one and the same kind."""
    counts = Counter((node, kind) for _, kind, _, node in failures)
    return [node for (node, _), count in counts.items() if count >= least]
