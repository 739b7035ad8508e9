"""The log of what a controller refuses: connections, frames and messages of other hosts, and scrapes."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict, deque

from flowdist.text.printable import one_line

SOURCES_MAX = 256  # peers and nodes that are remembered; the one that was refused longest ago is forgotten first
QUIET_S = 60.0  # between two lines about one source
TEXT_MAX = 500  # characters of a line
LINES_MAX = 30  # lines in QUIET_S, over all sources: a peer may have many addresses


class Refusals:
    """Writes a line to stderr for each refusal, but at most one a minute for each source, and LINES_MAX for all.

    Such a line says how often the source was refused since the one before. The log stays small, whatever is sent.
    """

    def __init__(self) -> None:
        self._said_s: deque[float] = deque(maxlen=LINES_MAX)  # when the last lines were written
        self._sources: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when last said, refusals since
        self.count = 0  # of all refusals

    def note(self, source: str, reason: str) -> None:
        """Note a refusal of a peer or node; the reason is a sentence without a full stop."""
        self.count += 1
        now = time.monotonic()
        said_s, since = self._sources.pop(source, (now - QUIET_S, 0))
        is_due = now - said_s >= QUIET_S and (len(self._said_s) < LINES_MAX or now - self._said_s[0] >= QUIET_S)
        self._sources[source] = (now, 0) if is_due else (said_s, since + 1)
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        if is_due:
            more = f" (and {since} times more since the last such line)" if since else ""
            text = one_line(f"{source} was refused: {reason}"[:TEXT_MAX])[:TEXT_MAX]
            self._said_s.append(now)
            _say(text + more)

    def sum_up(self) -> None:
        """Write how many refusals there were in all, if there were any."""
        if self.count:
            _say(f"{self.count} connections and messages were refused in all")


def _say(text: str) -> None:
    print(f"flowdist: {text}", file=sys.stderr, flush=True)
