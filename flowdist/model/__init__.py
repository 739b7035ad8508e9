"""The documented name of `flowdist.worker.model`: what user code is written against that can be simulated and run."""

from flowdist.worker.model import (
    Context,
    Folder,
    RealContext,
    Store,
    alone,
    check_data,
    check_name,
    run,
    steps_done,
    stream_of,
    tell_committed,
)

__all__ = [
    "Context",
    "Folder",
    "RealContext",
    "Store",
    "alone",
    "check_data",
    "check_name",
    "run",
    "steps_done",
    "stream_of",
    "tell_committed",
]
