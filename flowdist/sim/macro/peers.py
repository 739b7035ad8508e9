"""Failures that may follow from the death of a peer's node, in macro mode: who is not to blame does not pay (R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from flowdist.control.incidents.causes import PEER_KINDS

if TYPE_CHECKING:
    from flowdist.sim.macro.macro import Macro


class Held(NamedTuple):
    """A failure that ends the job unless it follows from something else: why, whose, and where."""

    reason: str
    replica: int
    node: int


def hold(macro: Macro, replica: int, kind: str, reason: str) -> Held | None:
    """What would end the job is judged when the nodes of the others have answered that they have stopped, if any."""
    seats = macro.seats
    node = seats.node_of[replica]
    if kind not in PEER_KINDS or node is None or seats.taken == len(seats.on[node]):
        return None
    return Held(reason, replica, node)


def is_excused(macro: Macro, node: int, why: str, now: int) -> bool:
    """Whether somebody is to pay for a failure of a peer of this node, which has died before it could answer."""
    options, held = macro.options, macro.held
    if macro.died[node] >= macro.stopped_ns or macro.kind not in PEER_KINDS:
        return False
    if held is not None:
        return held.node != node
    window = options.silent_after_ns if why == "not heard" else options.cause_window_ns
    return macro.counts and now - macro.opened <= window


def excuse(macro: Macro, reason: str, now: int) -> None:
    """The gang is stopped already, for a failure that was none of the replica's: it was the node's."""
    if macro.held is None:
        macro.policy.excuse(macro.opened)
        macro.seats.forgive(macro.opened)
    macro.note_incident("node_lost", reason, now)
    macro.backoff, macro.backoff_until, macro.counts = 0, now, False
    macro.held, macro.do = None, macro.stopped
    macro.note_change(reason, now, chosen=False)
