"""The outbox: messages that a dead controller did not read reach the next one, and none is handled twice (R21)."""

from __future__ import annotations

import msgspec

from flowdist.control.protocol.events import (
    CancelRequested,
    ControllerStarted,
    Event,
    NodeGone,
    ScaleRequested,
    TimePassed,
)
from flowdist.record.journal import FaultLine, Header, Line, Record
from flowdist.runtime.supervisor.outbox import Outbox
from flowdist.runtime.wire.frames import HealLink, Injected, Operate, encode
from tests.control.harness import graph, role

FOUR, TWO = Operate(ScaleRequested("trainer", 4)), Operate(ScaleRequested("trainer", 2))
HIT = Injected("ps/0@every=1s", "ps/0")


class Connection:
    """A connection to one controller."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self.said.append(data)

    def was_told(self, *messages: msgspec.Struct) -> bool:
        return self.said == [encode(message) for message in messages]


def recorded(event: Event) -> Line:
    return Record(1, 0, event, (), "")


def first_line() -> Line:
    return Header(graph(role("trainer")), ("node0",), "a-run")


def begun() -> tuple[Outbox, Connection]:
    outbox, first = Outbox(), Connection()
    outbox.attach(first.write)
    outbox.observe(first_line())
    return outbox, first


def next_one(outbox: Outbox, *last_words: Line) -> Connection:
    """Replace the controller: the next one shows the lines of the last and takes over."""
    outbox.detach()
    after = Connection()
    outbox.attach(after.write)
    for line in last_words:
        outbox.observe(line)
    assert after.was_told(), "it might hear again what the last one did"
    outbox.observe(recorded(ControllerStarted(2)))
    return after


def test_messages_without_a_record_are_sent_to_the_next_controller_in_order() -> None:
    outbox, first = begun()
    for message in (FOUR, HIT, TWO):
        outbox.send(message)
    assert first.was_told(FOUR, HIT, TWO)
    assert next_one(outbox).was_told(FOUR, HIT, TWO)


def test_recorded_messages_are_not_sent_again() -> None:
    outbox, _ = begun()
    for message in (FOUR, HIT, TWO):
        outbox.send(message)
    outbox.observe(recorded(TimePassed()))
    outbox.observe(recorded(FOUR.event))
    second = next_one(outbox, FaultLine(0, HIT.spec, HIT.target))  # it died before that was heard
    assert second.was_told(TWO)
    outbox.observe(recorded(TWO.event))
    assert next_one(outbox).was_told()


def test_each_of_two_equal_messages_needs_a_line_of_its_own() -> None:
    outbox, _ = begun()
    outbox.send(HIT)
    outbox.send(HIT)
    outbox.observe(FaultLine(0, HIT.spec, HIT.target))
    assert next_one(outbox).was_told(HIT)


def test_messages_wait_for_the_next_controller_also_those_that_are_never_recorded() -> None:
    outbox = Outbox()
    heal = HealLink("node0", "node0@1s:lost")
    outbox.send(FOUR)
    first = Connection()
    outbox.attach(first.write)
    outbox.send(heal)
    assert first.was_told()
    outbox.observe(first_line())
    assert first.was_told(FOUR, heal)
    assert next_one(outbox).was_told(FOUR), "of the other no line would ever tell that it was heard"


def test_nothing_is_sent_to_a_controller_after_detach() -> None:
    outbox, first = begun()
    outbox.detach()
    outbox.observe(recorded(ControllerStarted(2)))  # its last line
    outbox.send(FOUR)
    assert first.was_told()
    assert next_one(outbox).was_told(FOUR)


def test_messages_about_the_end_of_a_node_are_withdrawn_when_it_starts_again() -> None:
    outbox, _ = begun()
    for gone in (NodeGone("node0", "its agent died"), NodeGone("node1", "its agent died")):
        outbox.send(Operate(gone))
    outbox.send(Operate(CancelRequested("interrupted")))
    outbox.withdraw_gone("node0")
    expected = (Operate(NodeGone("node1", "its agent died")), Operate(CancelRequested("interrupted")))
    assert next_one(outbox).was_told(*expected)
