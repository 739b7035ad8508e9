"""Two hosts with a network of their own between them: namespaces that the test makes, and that end with it."""

from __future__ import annotations

import shutil
import subprocess
from types import TracebackType

import pytest


class Network:
    """10.77.0.1 and 10.77.0.2, joined by a cable that can be cut. Skips the test where it may not be made."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        if missing := [program for program in ("unshare", "nsenter", "ip") if shutil.which(program) is None]:
            pytest.skip(f"{missing[0]} is not installed")

    def __enter__(self) -> Network:
        self._hold(["unshare", "-r", "-n"])
        self._hold([*self.on(1), "unshare", "-n"])
        try:
            self._ip(1, "link add veth1 type veth peer name veth2 netns", str(self._holders[1].pid))
            for number in (1, 2):
                self._ip(number, f"addr add 10.77.0.{number}/24 dev veth{number}")
                self._ip(number, f"link set veth{number} up")
                self._ip(number, "link set lo up")
        except subprocess.CalledProcessError as error:
            self.__exit__(None, None, None)
            pytest.skip(f"networks may not be made here: {error.stderr.decode().strip()}")
        return self

    def _hold(self, command: list[str]) -> None:
        """A process that keeps a namespace, until its input ends."""
        holder = subprocess.Popen(
            [*command, "sh", "-c", "echo ready; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != b"ready\n":
            why = holder.stderr.read().decode().strip()
            self.__exit__(None, None, None)
            pytest.skip(f"namespaces may not be made here: {why}")

    def on(self, number: int) -> tuple[str, ...]:
        """What a command on that host begins with."""
        return ("nsenter", "-t", str(self._holders[number - 1].pid), "-U", "-n", "--preserve-credentials")

    def _ip(self, number: int, words: str, *more: str) -> None:
        subprocess.run([*self.on(number), "ip", *words.split(), *more], check=True, capture_output=True, timeout=20)

    def cut(self) -> None:
        """Nothing comes through any more, and nobody is told."""
        self._ip(2, "link set veth2 down")

    def mend(self) -> None:
        self._ip(2, "link set veth2 up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for holder in self._holders:
            assert holder.stdin is not None and holder.stdout is not None and holder.stderr is not None
            holder.stdin.close()
            holder.wait(20)
            holder.stdout.close()
            holder.stderr.close()
