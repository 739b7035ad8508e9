"""Failures that may follow from the death of a peer's node, in macro mode: who is not to blame does not pay (R8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowdist.control.causes import PEER_KINDS

if TYPE_CHECKING:
    from flowdist.sim.macro import Macro


def hold(macro: Macro, replica: int, kind: str, reason: str, now: int) -> bool:
    """What would end the job is judged when the nodes of the others have answered that they have stopped, if any."""
    seats, books = macro.seats, macro.books
    node = seats.node_of[replica]
    if kind not in PEER_KINDS or node is None or seats.taken == len(seats.on[node]):
        return False
    macro.result.causes[kind] += 1
    macro.say(now, "incident", kind, reason)
    if books.begun is None:
        books.move("re-formation", books.active, now)
    return True


def is_excused(macro: Macro, node: int, why: str, now: int) -> bool:
    """Whether somebody is to pay for a failure of a peer of this node, which has died before it could answer."""
    options = macro.options
    window = options.silent_after_ns if why == "not heard" else options.cause_window_ns
    is_of_peers = macro.kind in PEER_KINDS and macro.died[node] < macro.stopped_ns
    return macro.counts and is_of_peers and now - macro.opened <= window


def excuse(macro: Macro, reason: str, now: int) -> None:
    """The gang is stopped already, for a failure that was none of the replica's: it was the node's."""
    macro.policy.excuse(macro.opened)
    macro.seats.forgive(macro.opened)
    macro.result.causes["node_lost"] += 1
    macro.say(now, "incident", "node_lost", reason)
    macro.backoff, macro.backoff_until, macro.counts = 0, now, False
    too_many = macro.policy.note_free(False, chosen=False)
    if too_many:
        macro.fail(f"{too_many}; the last: {reason}", now)
