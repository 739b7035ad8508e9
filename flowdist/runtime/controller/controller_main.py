"""The program of the controller process: it reads its configuration and the job, and runs until the supervisor ends.

A standby (`is_standby`) waits here, with everything imported, until the controller that runs has died: to import
flowdist takes 0.4 s of a processor, seconds on a busy machine. Hosts that connect over TCP kill their workers `lease`
less a second after the last answer of a controller, so that a start from nothing may cost every worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import select
import sys
from pathlib import Path

import msgspec

from flowdist.graph import decode_graph
from flowdist.record.reader import BadLine
from flowdist.runtime.controller.controller_process import ControllerConfig, ControllerProcess
from flowdist.runtime.controller.journal_file import JOURNAL_BAD
from flowdist.runtime.last_words import die_of
from flowdist.runtime.notices import ignore_notices
from flowdist.runtime.wire.handshake import TOKEN
from flowdist.runtime.wire.tls import can_encrypt, new_identity
from flowdist.text.streams import print_printable_only

STDIN, PIECE_BYTES = 0, 1 << 16


def _wait_until_needed(lifeline: int) -> bytes:
    """Wait for the configuration of this controller on stdin, up to the end of the stream, and return it.

    This process exits if there is none: the run has ended, or its supervisor is gone, which closes `lifeline`.
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


def main() -> None:
    """Run the controller process. Its argument is a ControllerConfig as JSON; the token is in FLOWDIST_TOKEN."""
    ignore_notices(os.environ)
    print_printable_only()  # the log quotes what other hosts send
    config = msgspec.json.decode(sys.argv[1], type=ControllerConfig)
    token = os.environ.pop(TOKEN, "")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns at each frame for a peer that is gone
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # usually 1024 at first, and each host has two connections
    try:
        identity = new_identity() if token and config.listening is not None and can_encrypt() else None
        if config.is_standby:
            config = msgspec.json.decode(_wait_until_needed(config.lifeline), type=ControllerConfig)
        graph = decode_graph(Path(config.run_dir, "graph.json").read_bytes())
        controller = ControllerProcess(config, graph, token, identity)
    except (BadLine, msgspec.DecodeError) as error:
        why = error.message if isinstance(error, BadLine) else f"graph.json cannot be read: {error}"
        print(f"flowdist: no controller can take over: {why}", file=sys.stderr)
        sys.exit(JOURNAL_BAD)
    except Exception as error:
        die_of(error)
    try:
        asyncio.run(controller.run())
    except Exception as error:
        die_of(error)


if __name__ == "__main__":
    main()
