"""Texts that agents report are cut before they are recorded, wherever in a message they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowdist.control.connection.sessions import GPU_TEXT_MAX, TEXT_MAX, Sessions, cut, with_short_text
from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.control.protocol.messages import Join, Report
from flowdist.graph import JobOptions, NodeSpec

R = ReplicaId("trainer", 0)
LONG = "x" * 100_000


def of_events(sessions: Sessions, message: Any) -> bytes:
    return b"".join(map(msgspec.json.encode, sessions.hear(message, 0).events))


@pytest.mark.parametrize(
    "event",
    [
        ev.ReplicaExited(R, 1, "exit", 1, detail=LONG),
        ev.ReplicaStartsCold(R, 1, LONG),
        ev.StoreLost("trainer", 1, LONG),
        ev.GpuFailed("node0", 0, LONG),
        ev.VaultLost("node0", LONG),
        ev.CopyBroken("trainer", 1, 20, 0, "node0", LONG),
    ],
)
def test_a_long_text_of_a_report_is_cut_and_says_so(event: Any) -> None:
    sessions = Sessions(JobOptions())
    sessions.hear(Join("node0", 1, NodeSpec("node0"), "127.0.0.1", 0), 0)
    recorded = of_events(sessions, Report("node0", 1, event))
    assert len(recorded) < 1000 and b"... (cut, it has 100000 characters)" in recorded


def test_long_texts_of_a_join_are_cut() -> None:
    exited = ev.ReplicaExited(R, 1, "exit", 1, detail=LONG)
    items = (ev.InventoryItem(R, 1, "exited", exited=exited), ev.InventoryItem(R, 2, "running"))
    join = Join("node0", 1, NodeSpec("node0"), "127.0.0.1", 0, items, bad_gpus=((0, LONG), (1, "bad")))
    recorded = of_events(Sessions(JobOptions()), join)
    assert len(recorded) < 2000 and recorded.count(b"(cut, it has 100000 characters)") == 2 and b'"bad"' in recorded


def test_the_cause_of_a_death_is_cut() -> None:
    (gone,) = Sessions(JobOptions()).gone("node0", 1, LONG)
    assert len(gone.cause) == TEXT_MAX


@pytest.mark.parametrize("most", [TEXT_MAX, GPU_TEXT_MAX])
def test_a_text_of_the_limit_stays_as_it_is(most: int) -> None:
    assert cut("x" * most, most) == "x" * most and len(cut("x" * (most + 1), most)) == most
    assert cut("x" * (most + 1), most).startswith("xxx")


def test_an_event_without_a_long_text_is_the_same_object() -> None:
    for event in (ev.ReplicaExited(R, 1, detail="short"), ev.NodeWarm("node0")):
        assert with_short_text(event) is event
