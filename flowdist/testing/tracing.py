"""Simulations inside a Hypothesis test, without its line tracing.

After a failure, Hypothesis traces every line of each further example, to name those that only failing ones run: here
lines of flowdist, which tell a user nothing, and each run takes ten times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

TRACER = "hypothesis.internal.scrutineer"
TOOL, TOOL_ID = "scrutineer", 3  # name and number of Hypothesis in sys.monitoring, from Python 3.12 on


@contextmanager
def untraced() -> Iterator[None]:
    """Switch the line tracing of Hypothesis, not that of debuggers and coverage, off for the block."""
    if sys.version_info >= (3, 12):
        is_theirs = sys.monitoring.get_tool(TOOL_ID) == TOOL
        before, off = sys.monitoring.get_events(TOOL_ID) if is_theirs else 0, 0
        trace = partial(sys.monitoring.set_events, TOOL_ID)
    else:
        is_theirs = getattr(sys.gettrace(), "__module__", "") == TRACER
        before, off = sys.gettrace() if is_theirs else None, None
        trace = sys.settrace
    if not before:
        yield
        return
    trace(off)
    try:
        yield
    finally:
        trace(before)
