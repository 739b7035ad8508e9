"""Replicas that stayed in place do not count as restarted: in the summary, the status, the hooks and the timeline."""

from __future__ import annotations

from flowdist.control.protocol import events as ev
from flowdist.record.status import RecentDecisions, RestartCount, status_of
from flowdist.report.record.summary import summary_of, summary_text
from flowdist.runtime.hooks.hooks import _incident
from tests.control.harness import Talk, graph, r, restart, role


def gang() -> Talk:
    """Return three trainers with elastic code, one of which has failed."""
    talk = Talk(graph(role("trainer", min_replicas=1, max_replicas=3, restart=restart())))
    talk.join("node0")
    talk.elastic(*talk.up())
    talk.fail("trainer/1")
    return talk


def test_the_decision_says_how_many_can_stay() -> None:
    found = [text for text in gang().texts() if text.startswith("incident 1: trainer/1 failed")]
    assert "; re-forming trainer, of which 2 replicas can stay in place (restart 1 of 3" in found[0]


def test_the_summary_separates_restarted_replicas_from_those_in_place() -> None:
    summary = summary_of(gang().job, [])
    (incident,) = summary["incidents"]
    assert incident["restarted"] == ["trainer/1"] and incident["stayed_in_place"] == ["trainer/0", "trainer/2"]
    assert summary["roles"]["trainer"]["restarts"] == 1
    assert "restarted trainer/1; trainer/0, trainer/2 stayed in place; re-formed" in summary_text(summary)


def test_status_and_metrics_count_only_restarted_replicas() -> None:
    status = status_of(gang().job, RecentDecisions())
    assert status.roles[0].restarts == 1
    assert status.restarts == (RestartCount("trainer", "exit", 1),)


def test_a_hook_receives_both() -> None:
    told = _incident(gang().job.incidents[0])
    assert (told["restarted"], told["stayed_in_place"]) == (["trainer/1"], ["trainer/0", "trainer/2"])


def test_a_replica_that_fails_to_stay_in_place_counts_as_restarted() -> None:
    talk = Talk(graph(role("trainer", min_replicas=1, max_replicas=3, restart=restart())))
    talk.join("node0")
    talk.elastic(*talk.up())
    talk.auto = False
    talk.fail("trainer/1")
    talk.tell(ev.ReplicaStopped(r("trainer/0"), 1))  # killed by its agent: it had not left in time
    talk.auto = True
    talk.tell(ev.ReplicaStopped(r("trainer/2"), 1, suspended=True))
    assert summary_of(talk.job, [])["incidents"][0]["stayed_in_place"] == ["trainer/2"]


def test_a_replica_that_failed_has_restarted_though_workers_of_it_stayed() -> None:
    talk = Talk(graph(role("trainer", procs=2, min_replicas=1, max_replicas=1, restart=restart())))
    talk.join("node0")
    talk.elastic("trainer/0")
    talk.fail("trainer/0")
    assert summary_of(talk.job, [])["incidents"][0]["restarted"] == ["trainer/0"]
