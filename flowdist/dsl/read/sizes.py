"""Numbers of replicas as users write them: `2:4x2`."""

from __future__ import annotations

import re
from typing import NamedTuple

_SIZE = re.compile(r"(?:(\d+):)?(\d+)(?:x(\d+))?")


class Sizes(NamedTuple):
    """Minimum and maximum of replicas, and workers of a replica; `procs` is None where the default applies."""

    low: int
    high: int
    procs: int | None


def parse_sizes(value: str | int) -> Sizes:
    """Parse `[MIN:]MAX[xPROCS]`; a bare N always means N replicas.

    Raises:
        ValueError: The value is anything else.
    """
    if isinstance(value, bool):
        raise ValueError("not a number of replicas")
    if isinstance(value, int):
        return Sizes(value, value, None)
    match = _SIZE.fullmatch(value.replace(" ", ""))
    if match is None:
        raise ValueError("not a number of replicas")
    high = int(match[2])
    return Sizes(int(match[1]) if match[1] else high, high, int(match[3]) if match[3] else None)
