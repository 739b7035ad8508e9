"""The guardian's watch over the lease of an agent that stands still."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flowdist.control.agent.lease import LATE_NS
from flowdist.graph import MS, SECOND
from flowdist.runtime.agent.lease_watch import LOOK_S, NO_LEASE_S, LeasePage, LeaseWatch

pytestmark = pytest.mark.real
# A guardian with one worker, to which it sends the signals that it reads. It answers when the kernel has acted on each.
GUARDIAN = """
import os, subprocess, sys
worker = subprocess.Popen(["sleep", "600"])
print(flush=True)
for line in sys.stdin:
    worker.send_signal(int(line))
    os.waitpid(worker.pid, os.WUNTRACED | os.WCONTINUED)
    print(flush=True)
worker.kill()
"""
FENCE_AT = 100 * SECOND


class Node:
    """A process that plays the guardian of one worker, and its watch, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0
        command = [sys.executable, "-S", "-c", GUARDIAN]
        self.guardian = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._hear()
        self.page = LeasePage()
        self.watch = LeaseWatch(self.page, self.guardian.pid, agent=1, now_ns=lambda: self.now)

    def _hear(self) -> None:
        assert self.guardian.stdout is not None and self.guardian.stdout.readline()

    def signal_worker(self, number: signal.Signals) -> None:
        assert self.guardian.stdin is not None
        self.guardian.stdin.write(f"{number.value}\n")
        self.guardian.stdin.flush()
        self._hear()

    def is_missed_at(self, *times: int) -> bool:
        """Look at each of these times (ns), and return whether the lease is missed at the last."""
        for self.now in times:
            is_missed = self.watch.is_missed()
        return is_missed


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.guardian.communicate("")  # it kills its worker and ends


def test_a_lease_that_is_over_while_a_worker_runs_is_missed(node: Node) -> None:
    node.page.write(FENCE_AT)
    late = FENCE_AT + LATE_NS
    assert not node.is_missed_at(FENCE_AT, late - 1, late, late + LATE_NS - 1)
    assert node.is_missed_at(late + LATE_NS)


@pytest.mark.parametrize("renewed", [FENCE_AT + 3600 * SECOND, None])
def test_a_lease_that_is_renewed_or_given_up_in_time_is_not_missed(node: Node, renewed: int | None) -> None:
    node.page.write(FENCE_AT)
    assert not node.is_missed_at(FENCE_AT + LATE_NS)
    node.page.write(renewed)
    assert node.page.read() == renewed and not node.is_missed_at(FENCE_AT + 2 * LATE_NS, FENCE_AT + 9 * LATE_NS)


def test_a_node_that_stands_still_as_a_whole_has_missed_nothing(node: Node) -> None:
    """When it runs again, its agent gets some time to find out that its lease is over."""
    node.signal_worker(signal.SIGSTOP)
    node.page.write(FENCE_AT)
    again = FENCE_AT + 9 * LATE_NS
    assert not node.is_missed_at(FENCE_AT + LATE_NS, again)
    node.signal_worker(signal.SIGCONT)
    assert not node.is_missed_at(again, again + LATE_NS - 1)
    assert node.is_missed_at(again + LATE_NS)


def test_the_next_look_comes_when_the_agent_is_late(node: Node) -> None:
    assert node.watch.seconds_until_look() == NO_LEASE_S
    node.page.write(FENCE_AT)
    node.now = FENCE_AT - 500 * MS
    assert node.watch.seconds_until_look() == 1.0
    node.now = FENCE_AT + SECOND
    assert node.watch.seconds_until_look() == LOOK_S
