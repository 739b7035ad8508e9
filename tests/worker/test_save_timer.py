"""Timing of saving and restoring: what is sent and when, what counts once, and what does not count."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from flowdist import worker
from flowdist.worker.save_timer import SENT_FROM_NS, SaveTimer, save_timer
from tests.worker.test_worker import AgentSide, managed

__all__ = ["managed"]
S = 1_000_000_000


@pytest.fixture(autouse=True)
def _new_attempt() -> None:
    """Forget what other tests of this process have saved."""
    save_timer.begin_attempt()


class Timing:
    """A timer with a clock that the test sets, in seconds, and a list of what it has sent, as (what, seconds)."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timer = SaveTimer(self._send, lambda: round(self.now * S))
        self.sent: list[tuple[str, float]] = []

    def _send(self, message: dict[str, Any]) -> None:
        self.sent.append((message["spent"]["on"], message["spent"]["ns"] / S))


@pytest.fixture
def timing(monkeypatch: pytest.MonkeyPatch) -> Timing:
    """Return a timer of a process that flowdist has started."""
    monkeypatch.setenv("FLOWDIST_SOCKET", "/nonexistent")
    return Timing()


def test_the_sum_is_sent_at_the_end_of_each_block(timing: Timing) -> None:
    for seconds in (2, 3):
        with timing.timer.block("saving"):
            assert len(timing.sent) == seconds - 2
            timing.now += seconds
        timing.now += 10
    with timing.timer.block("restoring"):
        timing.now += 1
    assert timing.sent == [("saving", 2), ("saving", 5), ("restoring", 1)]


def test_an_exception_passes_through_and_is_timed(timing: Timing) -> None:
    with pytest.raises(OSError, match="disk full"), timing.timer.block("saving"):
        timing.now += 4
        raise OSError("disk full")
    assert timing.sent == [("saving", 4)]


def test_a_block_inside_another_counts_once_as_what_the_outer_one_does(timing: Timing) -> None:
    with timing.timer.block("saving"):
        timing.now += 1
        with timing.timer.block("restoring"), timing.timer.block("saving"):
            timing.now += 1
        timing.now += 1
    assert timing.sent == [("saving", 3)]


def test_blocks_of_two_threads_at_a_time_count_once(timing: Timing) -> None:
    is_open, may_end = threading.Event(), threading.Event()

    def save() -> None:
        with timing.timer.block("saving"):
            is_open.set()
            may_end.wait(10)

    thread = threading.Thread(target=save)
    with timing.timer.block("saving"):
        timing.now += 1
        thread.start()
        assert is_open.wait(10)
        timing.now += 1
    assert timing.sent == [], "the other thread saves on"
    timing.now += 1
    may_end.set()
    thread.join()
    assert timing.sent == [("saving", 3)]


def test_a_process_that_becomes_another_attempt_counts_from_its_beginning(timing: Timing) -> None:
    with timing.timer.block("saving"):
        timing.now += 5
    with timing.timer.block("saving"):
        timing.now += 5
        timing.timer.begin_attempt()
        timing.now += 1
    assert timing.sent == [("saving", 5), ("saving", 1)]


def test_short_blocks_are_sent_with_the_next_long_one(timing: Timing) -> None:
    for _ in range(4):
        with timing.timer.block("saving"):
            timing.now += SENT_FROM_NS / S / 4
    assert timing.sent == [("saving", pytest.approx(SENT_FROM_NS / S))]


def test_without_flowdist_nothing_is_sent() -> None:
    timing = Timing()
    with timing.timer.block("saving"):
        timing.now += 1
    assert timing.sent == []


def test_a_forked_child_does_not_count(timing: Timing) -> None:
    with timing.timer.block("saving"):
        timing.now += 1
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
    if not pid:  # the child
        with timing.timer.block("saving"):
            timing.now += 1
        os._exit(len(timing.sent))
    assert timing.sent == [("saving", 1)]


def test_a_child_of_multiprocessing_does_not_count(timing: Timing, monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing.process

    monkeypatch.setattr(multiprocessing.process, "parent_process", object)
    with timing.timer.block("saving"):
        timing.now += 1
    assert timing.sent == []


def test_the_agent_hears_what_a_script_saves_and_restores(managed: AgentSide) -> None:
    for block in (worker.saving(), worker.restoring()):
        with block:
            _work()
    _, saved, restored = managed.wait_for(3)
    assert saved["spent"]["on"] == "saving" and restored["spent"]["on"] == "restoring"  # type: ignore[index]
    assert saved["spent"]["ns"] >= SENT_FROM_NS and restored["spent"]["ns"] >= SENT_FROM_NS  # type: ignore[index]


def test_an_agent_that_is_gone_keeps_no_training_waiting(managed: AgentSide) -> None:
    managed.close()
    Path(os.environ["FLOWDIST_SOCKET"]).unlink()
    with worker.saving():
        _work()


def test_what_flowdist_itself_saves_is_timed(
    managed: AgentSide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    block = save_timer.block

    def noted(on: Any) -> Any:
        opened.append(on)
        return block(on)

    monkeypatch.setattr(save_timer, "block", noted)
    worker.commit(tmp_path)
    worker.ElasticState(step=0).commit()
    assert opened == ["saving", "saving"]


def _work() -> None:
    """Do something for as long as a block has to last to be reported."""
    import time

    until = time.monotonic_ns() + SENT_FROM_NS
    while time.monotonic_ns() < until:
        pass
