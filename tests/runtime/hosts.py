"""Hosts for tests: each has a folder and a command of its own. They are addresses of the loopback network, 127/8."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path
from types import TracebackType

from tests.runtime.harness import Job


def free_port() -> int:
    """A port outside of what Linux gives to connections and flowdist to replicas (runtime/ports.py), so that none takes
    it while a test has its listener killed."""
    while True:
        port = random.randint(10_000, 14_999)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Hosts:
    """Commands on several hosts, which meet at 127.0.0.1. Leaving the block kills whatever is left."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.endpoint = folder, f"127.0.0.1:{free_port()}"
        self.jobs: list[Job] = []

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self.jobs:
            job.__exit__(kind, error, trace)

    def start(
        self, number: int, verb: str, *words: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()
    ) -> Job:
        """`flowdist VERB WORDS` on the host 127.0.0.NUMBER."""
        folder = self.folder / f"host{number}"
        folder.mkdir(exist_ok=True)
        self.jobs.append(Job(folder, *words, verb=verb, env=env, before=before))
        return self.jobs[-1]

    def all_end(self) -> list[int]:
        """Their exit codes, once all of them have ended and left nothing."""
        codes = [job.finish() for job in self.jobs]
        assert all(job.alive() == [] for job in self.jobs), self.text
        return codes

    @property
    def text(self) -> str:
        return "\n".join(f"--- {job.folder.name}\n{job.text}" for job in self.jobs)


class Torchruns(Hosts):
    """`flowdist torchrun OPTIONS` on each host."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        self.options = options

    def first(self, *words: str, env: dict[str, str] | None = None) -> Job:
        """The host that the endpoint names."""
        return self._torchrun(1, "is_host=1,last_call_timeout=5", *words, env=env)

    def another(self, number: int, *words: str, env: dict[str, str] | None = None) -> Job:
        """One that does not run the controller."""
        return self._torchrun(number, "is_host=0,join_timeout=60", *words, env=env)

    def _torchrun(self, number: int, conf: str, *words: str, env: dict[str, str] | None) -> Job:
        place = ["--rdzv-endpoint", self.endpoint, "--rdzv-conf", conf, "--local-addr", f"127.0.0.{number}"]
        return self.start(number, "torchrun", *self.options, *place, *words, env=env)
