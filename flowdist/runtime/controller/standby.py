"""A controller process that has imported everything, and waits until the one that runs has died.

To start Python and to import flowdist takes 0.4 s of a processor, which are seconds on a busy machine. Hosts that
connect over TCP kill their workers `lease` less a second after the last answer of a controller, so that a start from
nothing may cost every worker. A standby only has to read the journal.
"""

from __future__ import annotations

import os
import select
import sys

STDIN, PIECE_BYTES = 0, 1 << 16


def wait_until_needed(lifeline: int) -> bytes:
    """Wait for the configuration of this controller on stdin, up to the end of the stream, and return it.

    This process exits if there is none: the run has ended, or its supervisor is gone.

    Args:
        lifeline: The descriptor of a pipe that ends when the supervisor ends.
    """
    data = b""
    while True:
        ready, _, _ = select.select([STDIN, lifeline], [], [])
        if lifeline in ready:
            sys.exit(0)
        piece = os.read(STDIN, PIECE_BYTES)
        data += piece
        if not piece:
            break
    if not data:
        sys.exit(0)
    return data
