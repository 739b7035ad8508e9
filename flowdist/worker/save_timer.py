"""Timing of saving and restoring, so that flowdist can tell it from training. Standard library only.

The timer sends the sum since the attempt began, at the end of a block: a message that is lost makes the next one no
less true. A save that is interrupted by the end of this process is not reported, and a sum that has grown by less than
`SENT_FROM_NS` waits for the next block: a loop may commit to memory after every step. Like the step counter, the timer
runs inside the user's own code: it never waits for the agent, and raises nothing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

from flowdist.worker.agent_link import is_managed, link

Activity = Literal["saving", "restoring"]
SENT_FROM_NS = 1_000_000


class SaveTimer:
    """Timer of the saving and restoring of this process.

    While a block is open, blocks inside it and in other threads count as part of it, whatever they do: the time in
    which there is a block counts once.

    Args:
        send: Sends a message to the agent without waiting, and raises nothing.
        clock: Returns nanoseconds that never decrease.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._send, self._clock = send, clock
        self._lock = threading.Lock()
        self._open = 0  # blocks
        self._on: Activity = "saving"  # what the first of these does
        self._since_ns = 0
        self._spent_ns: Counter[Activity] = Counter()
        self._sent_ns: Counter[Activity] = Counter()
        self._is_worker: bool | None = None  # None: not known before the first block

    @contextmanager
    def block(self, on: Activity) -> Iterator[None]:
        """Return a context manager whose block counts as saving or restoring, also if an exception ends it.

        Nothing happens where flowdist has not started this process, and in child processes of a worker.
        """
        is_counted = is_managed() and self._is_in_worker()
        if is_counted:
            with self._lock:
                if self._open == 0:
                    self._on, self._since_ns = on, self._clock()
                self._open += 1
        try:
            yield
        finally:
            if is_counted:
                self._leave()

    def begin_attempt(self) -> None:
        """Count from 0 again, because this process has become the worker of another attempt."""
        with self._lock:
            self._spent_ns.clear()
            self._sent_ns.clear()
            self._since_ns = self._clock()

    def _leave(self) -> None:
        with self._lock:
            if not self._is_worker:
                return  # this process was forked inside the block
            self._open -= 1
            if self._open:
                return
            on = self._on
            self._spent_ns[on] += self._clock() - self._since_ns
            if self._spent_ns[on] - self._sent_ns[on] >= SENT_FROM_NS:
                self._sent_ns[on] = self._spent_ns[on]
                self._send({"spent": {"on": on, "ns": self._spent_ns[on]}})

    def _is_in_worker(self) -> bool:
        """Return whether this process is the worker itself, and no child of it such as a DataLoader's."""
        if self._is_worker is None:
            parent_process = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)
            self._is_worker = parent_process is None or parent_process() is None
            os.register_at_fork(after_in_child=self._leave_worker)  # not before: workers are forked, too
        return self._is_worker

    def _leave_worker(self) -> None:
        self._lock, self._is_worker = threading.Lock(), False


save_timer = SaveTimer(link.send_now)


def saving() -> AbstractContextManager[None]:
    """Return a context manager for the saving of a checkpoint: its time counts as `checkpoint`, not as productive.

        with worker.saving():
            torch.save(model.state_dict(), path)

    Put in it what training waits for. All workers that save or wait may use it: the longest time in a replica counts,
    and of a world that of the longest replica. Nested blocks, and blocks of several threads at a time, count once.
    `commit()` and `ElasticState.commit()` are timed without it. Without flowdist, and in child processes of a worker,
    nothing is timed.
    """
    return save_timer.block("saving")


def restoring() -> AbstractContextManager[None]:
    """Return a context manager for reading a checkpoint: its time counts as `restore`, not as start-up or productive.

    For the rest, see `saving`. What `elastic()` does to bring the state to all ranks is timed without it.
    """
    return save_timer.block("restoring")
