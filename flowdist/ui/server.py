"""A web server on loopback that shows one run. Every path begins with a secret, which the user's terminal has.

Other users of the machine, and pages of other sites in the browser, know no such path: the answer is 404. Names of
hosts other than loopback are refused, so that no site can have the browser ask for it (DNS rebinding).
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from flowdist.errors import FlowdistError
from flowdist.text.printable import printable_values
from flowdist.ui.follow import FollowedRun

ADDRESS = "127.0.0.1"


class RunServer(ThreadingHTTPServer):
    """The server of one run. `url` is what the user opens.

    Args:
        run: The run.
        port: The port; 0: any that is free.

    Raises:
        FlowdistError: The port is in use, or may not be used.
    """

    daemon_threads = True

    def __init__(self, run: FollowedRun, port: int) -> None:
        self.run, self.token = run, secrets.token_urlsafe(16)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            raise FlowdistError(f"port {port} of {ADDRESS} cannot be used: {error.strerror}") from None
        self.url = f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that leaves a page cuts its connections."""


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds for a request to arrive

    def do_GET(self) -> None:
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
        run = self.server.run
        if page == "":
            self._answer(HTTPStatus.OK, "text/html", run.page().encode())
        elif page == "data":
            data = printable_values(run.data_after(int(words.get("after", "0"))))
            self._answer(HTTPStatus.OK, "application/json", msgspec.json.encode(data))
        elif page == "logs":
            self._answer(HTTPStatus.OK, "text/plain", run.logs(words["replica"], int(words["attempt"])).encode())
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"there is nothing here\n")

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


@contextlib.contextmanager
def serving(run: FollowedRun, port: int = 0) -> Iterator[RunServer]:
    """Open the port; the caller then calls `serve_forever`.

    Raises:
        FlowdistError: The port cannot be used.
    """
    server = RunServer(run, port)
    try:
        yield server
    finally:
        server.server_close()
