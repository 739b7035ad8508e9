"""A web server on loopback that shows one run. Every path begins with a secret, which the user's terminal has.

Others know no such path: the answer is 404. Names of hosts other than loopback are refused, so that no site can have
the browser ask for it (DNS rebinding). It only reads, and the run does not wait for it.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from flowdist.errors import FlowdistError
from flowdist.ui.follow import FollowedRun

ADDRESS = "127.0.0.1"
CONNECTIONS_MAX = 64  # each has a thread; a browser has six
END_S = 2.0  # how long the end of a run waits for browsers to fetch it
NOT_YET = (
    "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=1><title>flowdist</title>The run begins ..."
)


class Readers:
    """The browsers that ask for the data of a run, and how many of them know its end. Several threads may use it.

    A browser asks again at once, until an answer has the end, so the greatest number of open questions is that of
    browsers; one that has gone is counted nevertheless.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = self._most = self._told = 0

    @contextlib.contextmanager
    def question(self) -> Iterator[None]:
        """Count a question while it is open."""
        with self._changed:
            self._open += 1
            self._most = max(self._most, self._open)
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1

    def told_the_end(self) -> None:
        """Count a browser that has got the end of the run."""
        with self._changed:
            self._told += 1
            self._changed.notify_all()

    def wait_for_end(self, seconds: float) -> None:
        """Wait until all browsers know the end, at most so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._told >= self._most, seconds)


class Waiting:
    """The open connections, and which of them have sent no whole request yet. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, None] = {}  # the one that has waited longest first

    def opened(self, connection: socket.socket) -> None:
        """Add a connection; if there are too many, end the one that has sent no request for the longest time."""
        with self._lock:
            self._open.add(connection)
            self._waiting[connection] = None
            victim = next(iter(self._waiting)) if len(self._open) > CONNECTIONS_MAX else None
            if victim is not None:
                self._forget(victim)
                with contextlib.suppress(OSError):
                    victim.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def waits(self, connection: socket.socket) -> None:
        """Record that the next request of a connection is waited for."""
        with self._lock:
            if connection in self._open:
                self._waiting[connection] = None

    def asked(self, connection: socket.socket) -> None:
        """Record that a request has arrived, which is being answered."""
        with self._lock:
            self._waiting.pop(connection, None)

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that has ended."""
        with self._lock:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class RunServer(ThreadingHTTPServer):
    """The server of one run, at a port that is bound from the beginning, or is a FlowdistError.

    Any process of this machine can connect. One that sends half a request, or none, holds a thread: so there are
    CONNECTIONS_MAX at most, and it is such a connection that ends for a new one. Without a run, see `begin`.
    """

    daemon_threads = True
    request_queue_size = 128  # connections that arrive at once; above, a browser would wait seconds for the next try

    def __init__(self, run: FollowedRun | None, port: int) -> None:
        self.run, self.token, self.readers, self.waiting = run, secrets.token_urlsafe(16), Readers(), Waiting()
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise FlowdistError(f"port {port} of {ADDRESS} cannot be used: {error.strerror}") from None
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"
        self._folder: Path | None = None
        self._opening = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="page", daemon=True)

    def begin(self, folder: Path) -> None:
        """Begin to answer, in a thread, for the run in a folder. Its journal need not exist yet."""
        self._folder = folder
        self._thread.start()

    def end(self) -> None:
        """Wait until the browsers have the end of the run, at most END_S seconds, and close the port."""
        if self._thread.is_alive():
            self.readers.wait_for_end(END_S)
            self.shutdown()
            self._thread.join()
        self.server_close()

    def followed(self) -> FollowedRun | None:
        """Return the run; None if it has not begun."""
        with self._opening:
            if self.run is None and self._folder is not None:
                with contextlib.suppress(FlowdistError):  # the controller has not written the header yet
                    self.run = FollowedRun(self._folder)
            return self.run

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer the requests of a new connection in a thread of its own."""
        self.waiting.opened(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is over."""
        self.waiting.closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that leaves a page cuts its connections."""


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds in which a part of a request has to arrive

    def handle_one_request(self) -> None:
        """Wait for the next request of the connection, and answer it."""
        self.server.waiting.waits(self.connection)
        super().handle_one_request()

    def do_GET(self) -> None:
        self.server.waiting.asked(self.connection)
        asked = urlsplit(self.path)
        _, token, *rest = [*asked.path.split("/", 2), "", ""]
        hosts = (f"{ADDRESS}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        if not hmac.compare_digest(token.encode(), self.server.token.encode()) or self.headers.get("Host") not in hosts:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")
            return
        words = {name: values[-1] for name, values in parse_qs(asked.query).items()}
        try:
            self._answer_to(rest[0], words)
        except (FlowdistError, ValueError, KeyError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", f"{error}\n".encode())

    def _answer_to(self, page: str, words: dict[str, str]) -> None:
        run = self.server.followed()
        if run is None:
            self._answer(HTTPStatus.OK if page == "" else HTTPStatus.NOT_FOUND, "text/html", NOT_YET.encode())
        elif page == "":
            self._answer(HTTPStatus.OK, "text/html", run.page().encode())
        elif page == "data":
            self._answer_data(run, int(words.get("after", "0")))
        elif page == "logs":
            self._answer(HTTPStatus.OK, "text/plain", run.logs(words["replica"], int(words["attempt"])).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")

    def _answer_data(self, run: FollowedRun, after: int) -> None:
        with self.server.readers.question():
            data = run.data_after(after)
            self._answer(HTTPStatus.OK, "application/json", msgspec.json.encode(data))
        if data["state"] != "running":
            self.server.readers.told_the_end()

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")  # the address of the page has the secret
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the user."""
