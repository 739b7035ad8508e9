"""Calls between roles: one line of JSON there, one back, over a connection of its own. Standard library only."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from typing import Any

from flowdist import worker

LINE_MAX = 16 << 20
RETRY_S = 0.05


def serve(port: int, answer: Callable[[dict[str, Any]], Any]) -> None:
    """Answer calls at the port, one at a time, until this process is stopped. A bad call is answered by nothing."""
    lock = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            try:
                message = json.loads(self.rfile.readline(LINE_MAX))
                with lock:
                    found = answer(message)
                self.wfile.write(json.dumps(found).encode() + b"\n")
            except (OSError, ValueError):
                pass  # the caller was killed in the middle of its call

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 64

    Server(("127.0.0.1", port), Handler).serve_forever()


def call(role: str, message: dict[str, Any]) -> Any:
    """Call the first replica of a role, and return its answer. While the role restarts, this waits and tries again."""
    while True:
        try:
            host, _, port = worker.peers(role, "rpc")[0].rpartition(":")
            with socket.create_connection((host, int(port)), timeout=5) as link:
                link.sendall(json.dumps(message).encode() + b"\n")
                with link.makefile("rb") as answers:
                    return json.loads(answers.readline(LINE_MAX))
        except (OSError, IndexError, ValueError):  # it restarts: its address may be another one afterwards
            time.sleep(RETRY_S)
