"""Ownership: which run may write a folder of checkpoints, or use the id of a job. One run at a time may.

A second run counts on its own clock how long a claim stays the same, and takes it after LEASE_NS; at once if its
owner's process here is gone, or is a lower epoch of the same run. An owner that stood still finds out at a commit.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from flowdist.graph import SECOND, format_duration

RENEW_NS = 2 * SECOND
LEASE_NS = 10 * SECOND  # five renewals: a file server that hangs for some seconds costs nothing

Word = Annotated[str, Meta(max_length=1000)]
Act = Literal["take", "wait", "refuse"]


class Claim(msgspec.Struct, frozen=True):
    """Claim of a run, as its file has it. `since` is a date of its host's clock, for people alone.

    `place` is the kernel and space of process ids in which `pid` and its `started` mean something. `token` tells two
    starts of one run apart. `beat` counts renewals.
    """

    run: Word
    epoch: Annotated[int, Meta(ge=0)]
    host: Word
    since: Word
    place: Word
    pid: int
    started: int
    token: Word
    beat: int = 0

    @property
    def owner(self) -> str:
        """Return the owner in words, such as `run a-1 on host0, since 2026-11-23 10:00:00`."""
        return f"run {self.run} on {self.host}, since {self.since}"


class Decision(NamedTuple):
    """Decision about a claim that a run wants. `because` is for the terminal; empty: nothing needs to be said."""

    act: Act
    because: str = ""


def decide(mine: Claim, found: Claim | None, *, has_changed: bool, unchanged_ns: int, is_dead: bool) -> Decision:
    """Return whether a run takes a claim, looks again later, or is refused.

    `found`, the claim in the file (None: no file), has been the same for `unchanged_ns` on this run's clock. `is_dead`:
    its process was on this host, and does not run any more.
    """
    if found is None or (found.run == mine.run and found.epoch < mine.epoch):
        return Decision("take")
    if has_changed:
        return Decision("refuse", f"belongs to {found.owner}; this would be {_name(mine)}")
    if is_dead:
        return Decision("take", f"was owned by {found.owner}, whose process is gone: it is taken over")
    if unchanged_ns >= LEASE_NS:
        silent = format_duration(LEASE_NS)
        return Decision("take", f"was owned by {found.owner}, which has not renewed it for {silent}: it is taken over")
    return Decision(
        "wait", f"belongs to {found.owner}; waiting up to {format_duration(LEASE_NS)} to see whether that run lives"
    )


def why_lost(mine: Claim, found: Claim | None) -> str:
    """Return why a run may not renew its claim; empty: it may, also if the file was removed (`found` is None)."""
    if found is None or found.token == mine.token:
        return ""
    return f"was taken over by {found.owner}, while {_name(mine)} had not renewed it for {format_duration(LEASE_NS)}"


def objection_to_commit(run: str, epoch: int, found: Claim | None) -> str:
    """Return why a run with this `epoch`, the highest heard of, may not publish a checkpoint; empty: it may."""
    if found is None or (found.run == run and found.epoch <= epoch):
        return ""
    if found.run == run:
        return f"run {run} was started again on {found.host}, as epoch {found.epoch}; this is epoch {epoch}"
    return f"the folder belongs to {found.owner}; this is run {run}"


def _name(mine: Claim) -> str:
    return f"run {mine.run} on {mine.host}" if mine.run else f"a new run on {mine.host}"
