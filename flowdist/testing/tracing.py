"""Simulations inside a Hypothesis test, without its line tracing.

Once a test has failed, Hypothesis traces every line of each further example, to name the lines that only failing
examples run. In a simulation those are lines of flowdist, which tell a user nothing, and each run takes ten times as
long.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRACER = "hypothesis.internal.scrutineer"
TOOL, TOOL_ID = "scrutineer", 3  # of Hypothesis in sys.monitoring, from Python 3.12 on


@contextmanager
def untraced() -> Iterator[None]:
    """Switch the tracing of Hypothesis off for the block. Debuggers and coverage are not affected."""
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        events = monitoring.get_events(TOOL_ID) if monitoring.get_tool(TOOL_ID) == TOOL else 0
        if not events:
            yield
            return
        monitoring.set_events(TOOL_ID, 0)
        try:
            yield
        finally:
            monitoring.set_events(TOOL_ID, events)
    else:
        trace = sys.gettrace()
        if getattr(trace, "__module__", "") != TRACER:
            yield
            return
        sys.settrace(None)
        try:
            yield
        finally:
            sys.settrace(trace)
