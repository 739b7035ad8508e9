"""A generation that goes back behind its checkpoint is named, once, and nothing else is."""

from __future__ import annotations

import msgspec
import pytest

from flowdist.graph import JointWorld, RoleGraph
from flowdist.record.journal import Header
from flowdist.record.replay import Replay
from flowdist.report.record.summary import summary_of, summary_text
from tests.control.harness import Talk, graph, restart, role
from tests.record.sheets import fail, save, step, trainers


def told(talk: Talk) -> list[str]:
    return [found.text for found in talk.job.restores]


def failed_at_250() -> Talk:
    talk = trainers(2)
    step(talk, 249, 249)
    step(talk, 250, 250)
    save(talk, 250, 250)
    fail(talk, 260)
    return talk


def test_a_restore_behind_the_checkpoint_is_a_warning_and_a_row_of_the_report():
    """A worker that picked the newest name as text went back to step 50 each time, and nobody said so."""
    talk = failed_at_250()
    step(talk, 270, 51)
    text = (
        "generation 2 of trainer restored step 50 or an earlier one, although 250 was committed: trainer/0 did step 51"
    )
    assert told(talk) == [f"{text} again"] and told(talk)[0] in talk.texts()
    step(talk, 271, 51, "trainer/1")
    step(talk, 272, 52)
    assert len(told(talk)) == 1, "once for a generation"
    fail(talk, 280)
    step(talk, 290, 51, "trainer/1")
    assert len(told(talk)) == 2
    summary = summary_of(talk.job, [])
    assert [(row["generation"], row["step"], row["committed"]) for row in summary["old_restores"]] == [
        (2, 51, 250),
        (3, 51, 250),
    ]
    assert f"although newer ones were committed: 2\n  at 4m30s: {text}" in summary_text(summary)


@pytest.mark.parametrize("first", [250, 251, 300])
def test_who_goes_on_from_the_checkpoint_or_from_memory_is_not_named(first: int):
    talk = failed_at_250()
    step(talk, 265, 0)  # a script may say so before it has restored anything
    step(talk, 270, first)
    step(talk, 271, 40)  # the numbers of an epoch
    assert told(talk) == []


def test_a_checkpoint_without_a_step_or_of_the_same_generation_says_nothing():
    talk = trainers()
    save(talk, 10, 0)
    fail(talk, 20)
    save(talk, 30, 500)
    step(talk, 40, 1)
    assert told(talk) == []


def test_only_the_role_that_makes_the_checkpoint_counts_its_steps_alike():
    a, b = (role(name, restart=restart(times=9)) for name in ("a", "b"))
    talk = Talk(RoleGraph("test", (a, b), cluster=graph(a).cluster, worlds=(JointWorld("core", ("a", "b")),)))
    talk.join("node0")
    save(talk, 10, 250, "a/0")
    fail(talk, 20, "a/0")
    step(talk, 30, 7, "b/0")
    assert told(talk) == []
    step(talk, 31, 51, "a/0")
    assert len(told(talk)) == 1


def test_a_record_without_the_warning_replays_all_the_same():
    """A notice orders nothing."""
    talk = failed_at_250()
    step(talk, 270, 51)
    header = Header(talk.graph, ("node0",))
    replay = Replay(header)
    lines = [replay.decide(event, at) for event, at in talk.record]
    assert any(line.effects for line in lines[-1:])
    silent = [*lines[:-1], msgspec.structs.replace(lines[-1], effects=())]
    again = Replay(header, strict=True).follow(silent)
    assert again.difference is not None and again.difference.is_wording and len(again.job.restores) == 1
