"""The public name of `flowdist.worker.model`, the interface of workers that can be simulated and run."""

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
