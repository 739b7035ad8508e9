"""The page of a run that this process itself begins, for `flowdist run --ui`.

A thread answers the browser: it reads the folder of the run as `flowdist ui` does, and the run does not wait for it.
The page ends with the run, after the browsers that look at it have got the end.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from flowdist.errors import FlowdistError
from flowdist.ui.follow import FollowedRun
from flowdist.ui.server import RunServer

END_S = 2.0  # how long the end of a run waits for browsers to fetch it


class PageBeside:
    """The page of one run, at a port that is bound from the beginning. `url` is what the user opens.

    Args:
        port: A port of 127.0.0.1; 0: any that is free.

    Raises:
        FlowdistError: The port is in use, or may not be used.
    """

    def __init__(self, port: int) -> None:
        self._server = _ServerOfNewRun(port)
        self.url, self.readers = self._server.url, self._server.readers
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="page", daemon=True)

    def begin(self, run_dir: Path) -> None:
        """Begin to answer.

        Args:
            run_dir: Folder of the run. Its journal need not exist yet.
        """
        self._server.folder = run_dir
        self._thread.start()

    def end(self) -> None:
        """Wait until the browsers have the end of the run, at most END_S seconds, and close the port."""
        if self._thread.is_alive():
            self.readers.wait_for_end(END_S)
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _ServerOfNewRun(RunServer):
    """Server of a run whose journal may not exist yet."""

    def __init__(self, port: int) -> None:
        super().__init__(None, port)
        self.folder: Path | None = None
        self._opening = threading.Lock()

    def followed(self) -> FollowedRun | None:
        with self._opening:
            if self.run is None and self.folder is not None:
                with contextlib.suppress(FlowdistError):  # the controller has not written the header yet
                    self.run = FollowedRun(self.folder)
            return self.run
