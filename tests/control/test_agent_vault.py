"""An agent passes on what the vault of its node says, and what the controller wants of it (R24)."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.control.protocol.effects import ReleaseCopies, SetBuddies
from tests.control.agent_harness import Talk

KEY = ("trainer", 3, 480, 1)
HELD = ev.CopyHeld(*KEY, "node0", 4, 100, "abc")
STORED = io.CopyStored(*KEY, 4, 100, "abc")


def joined(talk: Talk) -> msg.Join:
    """The agent loses its connection, and joins again."""
    talk.tell(io.Disconnected())
    found = [output for output in talk.tell(io.Connected()) if isinstance(output, msg.Join)]
    return found[-1]


def test_what_the_vault_says_is_reported() -> None:
    talk = Talk()
    assert talk.tell(io.VaultBound(7000)) == [ev.VaultOpened("node0", 7000)]
    assert talk.tell(STORED) == [HELD]
    assert talk.tell(io.CopyDamaged(*KEY, "wrong checksum")) == [ev.CopyBroken(*KEY, "node0", "wrong checksum")]
    assert talk.tell(io.CopyDamaged(*KEY)) == [], "it is known to be gone"
    assert talk.tell(io.VaultExited("signal SIGKILL")) == [ev.VaultLost("node0", "signal SIGKILL")]


def test_a_join_lists_the_vault_and_all_that_it_holds() -> None:
    talk = Talk()
    assert (joined(talk).vault_port, joined(talk).copies) == (0, ())
    talk.tell(io.VaultBound(7000))
    talk.tell(io.Disconnected())
    talk.tell(STORED)
    assert (joined(talk).vault_port, joined(talk).copies) == (7000, (HELD,)), "what was said without a connection, too"
    talk.tell(io.VaultExited())
    assert (joined(talk).vault_port, joined(talk).copies) == (0, ())
    talk.tell(STORED)
    talk.tell(io.VaultBound(7001))
    assert (joined(talk).vault_port, joined(talk).copies) == (7001, ()), "a new vault is empty"


def test_orders_are_passed_on_and_what_is_released_is_not_listed_any_more() -> None:
    talk = Talk()
    talk.tell(io.VaultBound(7000))
    talk.tell(STORED)
    buddies = SetBuddies("node0", "trainer", (("node1", "10.0.0.1:7000"),))
    assert talk.order(buddies) == [io.VaultOrder(buddies)]
    other = ReleaseCopies("node0", "trainer", 3, 460)
    assert talk.order(other) == [io.VaultOrder(other)] and joined(talk).copies == (HELD,)
    release = ReleaseCopies("node0", "trainer", 3, 480)
    assert talk.order(release) == [io.VaultOrder(release)] and joined(talk).copies == ()


def test_an_agent_that_has_fenced_still_lists_what_the_vault_holds() -> None:
    talk = Talk()
    talk.tell(io.VaultBound(7000))
    talk.tell(STORED)
    talk.at(60)
    join = next(message for message in reversed(talk.sent) if isinstance(message, msg.Join))
    assert join.incarnation == 2 and join.copies == (HELD,), "the controller says what of it counts"
