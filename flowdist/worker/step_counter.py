"""Counting of optimizer steps, so that flowdist can follow scripts that report no progress. Standard library only.

torch calls the hooks of `register_optimizer_step_post_hook`, a public function, after each step of any optimizer. The
counter is such a hook. It does not import torch: workers that are forked from a process with torch have it already, and
in others nothing is counted. The first step of an attempt is reported at once, later ones at most every `SEND_EVERY_S`:
a step then costs about a microsecond. Reports therefore lag, and say that a worker steps, not which one is behind. The
hook runs inside the user's own call: it never waits for the agent, and raises nothing.

A script that calls `progress()` knows better: from its first call on nothing is counted.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from flowdist.worker.agent_link import is_managed, link

SEND_EVERY_S = 0.1
SWITCH = "FLOWDIST_COUNT_STEPS"  # "0" turns the counter off


class StepCounter:
    """Counter of the optimizer steps of this process.

    A program may have several optimizers, as a GAN has. The steps of one of them count: of the first that steps, and
    when that one is gone, of the next that does.

    Args:
        send: Sends a message to the agent without waiting, and raises nothing.
        clock: Returns seconds that never decrease.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = send, clock
        self._is_on = False
        self._is_hooked = False
        self._at_first_step: list[Callable[[], None]] = []
        self._optimizer: weakref.ref[Any] | None = None
        self._count = 0
        self._send_at_s = 0.0

    def watch(self) -> bool:
        """Begin to count, if torch is imported here, flowdist has started this process, and counting is not turned off.

        Returns:
            Whether steps are counted.
        """
        self._is_on = is_managed() and os.environ.get(SWITCH) != "0" and self._hook()
        return self._is_on

    def at_first_step(self, call: Callable[[], None]) -> None:
        """Have `call` called once, at the first step of an optimizer or the first call of `progress()`.

        Without torch only the latter counts. Whether steps are counted makes no difference.
        """
        self._at_first_step.append(call)
        self._hook()

    def _hook(self) -> bool:
        """Have torch call this counter after each step, and return whether it does: torch may not be imported here."""
        register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
        if register is not None and not self._is_hooked:
            torch = sys.modules["torch"]

            def after_step(optimizer: object, args: object, kwargs: object) -> None:
                if not torch.compiler.is_compiling():  # else the message would become a part of the user's graph
                    self._pass_first_step()
                    self.note_step(optimizer)

            self._is_hooked = True
            register(after_step)
            os.register_at_fork(after_in_child=self._leave)
        return self._is_hooked

    def _pass_first_step(self) -> None:
        while self._at_first_step:
            self._at_first_step.pop()()

    def note_step(self, optimizer: object) -> None:
        """Count a step of an optimizer, and report the count if that is due.

        A step of an optimizer that does not count reports the same count again, as a sign of life (R15): a script may
        train for hours with another optimizer than at its beginning.
        """
        if not self._is_on:
            return
        first = self._optimizer() if self._optimizer is not None else None
        if first is None:
            self._optimizer = weakref.ref(optimizer)
        if first is None or first is optimizer:
            self._count += 1
        now = self._clock()
        if now >= self._send_at_s:
            self._send_at_s = now + SEND_EVERY_S
            self._send({"counted": self._count})

    def begin_attempt(self) -> None:
        """Count from 0 again, because this process has become the worker of another attempt."""
        self._count, self._send_at_s = 0, 0.0

    def stop(self) -> None:
        """Count no more steps, because the script reports its own."""
        self._pass_first_step()
        self._is_on = False

    def _leave(self) -> None:
        """Do nothing more in a forked child, such as a DataLoader's, which is not the worker."""
        self._is_on = False
        self._at_first_step.clear()


step_counter = StepCounter(link.send_now)
