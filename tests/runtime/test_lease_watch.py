"""The guardian's watch over the lease of an agent that stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from flowdist.runtime.agent.lease_watch import LATE_NS, LeasePage, LeaseWatch
from flowdist.runtime.clock import boot_ns

pytestmark = pytest.mark.real
SHELL = "sleep 600 & echo $!; exec sleep 600"


class Node:
    """A process that plays the guardian of one worker, and its watch."""

    def __init__(self) -> None:
        self.guardian = subprocess.Popen(["sh", "-c", SHELL], stdout=subprocess.PIPE, text=True)
        assert self.guardian.stdout is not None
        self.worker = int(self.guardian.stdout.readline())
        self.page = LeasePage()
        self.watch = LeaseWatch(self.page, self.guardian.pid, agent=1)

    def missed_within(self, ns: int) -> bool:
        """Return whether the lease is missed within so long."""
        until = boot_ns() + ns
        while boot_ns() < until:
            if self.watch.is_missed():
                return True
            time.sleep(0.01)
        return False


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    os.kill(node.worker, signal.SIGKILL)
    node.guardian.kill()
    node.guardian.communicate()


def test_a_lease_that_is_over_while_a_worker_runs_is_missed(node: Node) -> None:
    node.page.write(boot_ns())
    assert node.missed_within(60 * 10**9)


def test_a_lease_that_is_renewed_or_given_up_in_time_is_not_missed(node: Node) -> None:
    for fence_at in (boot_ns() + 3600 * 10**9, None):
        node.page.write(fence_at)
        assert node.page.read() == fence_at and not node.missed_within(2 * LATE_NS)


def test_a_node_that_stands_still_as_a_whole_has_missed_nothing(node: Node) -> None:
    """When it runs again, its agent gets some time to find out that its lease is over."""
    os.kill(node.worker, signal.SIGSTOP)
    node.page.write(boot_ns())
    assert not node.missed_within(4 * LATE_NS)
    os.kill(node.worker, signal.SIGCONT)
    again = boot_ns()
    assert node.missed_within(60 * 10**9) and boot_ns() - again >= LATE_NS
