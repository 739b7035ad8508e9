"""Back-off before restarts that a budget pays for: none before the first, then doubling up to a limit (R10)."""

from __future__ import annotations

from typing import NamedTuple

from flowdist.graph import RestartPolicy

DOUBLINGS_MAX = 40  # the cap is reached long before; without this bound the shift would build huge integers


class Backoff(NamedTuple):
    """Result of `next_backoff`: how long one incident waits (ns), and the `step` to pass for the next incident."""

    wait_ns: int
    step: int


def next_backoff(policy: RestartPolicy, step: int, last_counted_ns: int | None, now: int) -> Backoff:
    """Return how long an incident that a budget pays for waits, and the step of the next one. Nothing is changed.

    The first restart does not wait. Each later one waits twice as long as the one before, from `backoff_ns` to
    `backoff_max_ns`. After `backoff_reset_ns` without such an incident the series starts anew.

    Args:
        policy: The policy whose budget pays.
        step: How many incidents of the series came before this one.
        last_counted_ns: When the role's last charged incident closed (ns); None: there was none.
        now: When the incident opens (ns).
    """
    if last_counted_ns is not None and now - last_counted_ns >= policy.backoff_reset_ns:
        step = 0
    wait = min(policy.backoff_ns << min(step - 1, DOUBLINGS_MAX), policy.backoff_max_ns) if step else 0
    return Backoff(wait, step + 1)


def step_without_last(step: int) -> int:
    """Return the back-off step of a role after the charge of its last incident is taken back (R7); never negative."""
    return max(0, step - 1)
