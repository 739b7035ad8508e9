"""Hosts for tests: each has a folder and a command of its own. They are addresses of the loopback network, 127/8."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType

from tests.runtime.harness import Job


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Hosts:
    """`flowdist torchrun` on several hosts, which meet at 127.0.0.1. Leaving the block kills whatever is left."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options, self.port = folder, options, free_port()
        self.jobs: list[Job] = []

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self.jobs:
            job.__exit__()

    def first(self, *words: str, env: dict[str, str] | None = None) -> Job:
        """The host that the endpoint names."""
        return self._start(1, *words, env=env)

    def another(self, number: int, *words: str, env: dict[str, str] | None = None) -> Job:
        """127.0.0.NUMBER, which does not run the controller."""
        return self._start(number, "--rdzv-conf", "is_host=0,join_timeout=60", *words, env=env)

    def _start(self, number: int, *words: str, env: dict[str, str] | None) -> Job:
        folder = self.folder / f"host{number}"
        folder.mkdir(exist_ok=True)
        place = ["--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", f"127.0.0.{number}"]
        self.jobs.append(Job(folder, *self.options, *place, *words, verb="torchrun", env=env))
        return self.jobs[-1]
