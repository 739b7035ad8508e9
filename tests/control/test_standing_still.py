"""Processes of flowdist that stand still: what an agent reports of them, and what the controller does."""

from __future__ import annotations

from flowdist.control.protocol import agent_io as io
from flowdist.control.protocol import events as ev
from flowdist.control.protocol import messages as msg
from flowdist.record.status import RecentDecisions, status_of
from flowdist.report.live.status import status_text
from tests.control import agent_harness as agents
from tests.control.harness import Talk, joined, r, restart, role

SPAWNER = "its spawner (pid 7)"


def still(talk: Talk, who: str = SPAWNER, node: str = "node0") -> None:
    talk.tell(ev.NodeStandsStill(node, who))


def gang() -> Talk:
    return joined(role("trainer", min_replicas=1, max_replicas=1, restart=restart()), nodes=2, cpu=1)


def test_what_runs_on_a_node_that_stands_still_is_left_alone_and_the_user_is_told_once():
    talk = gang()
    for _ in range(2):
        still(talk)
    assert talk.up() == ["trainer/0"] and talk.job.incidents == []
    assert talk.texts().count(
        "node0: its spawner (pid 7) is stopped, by SIGSTOP or a debugger; nothing new is placed there"
    ) == 1  # fmt: skip


def test_what_restarts_goes_to_another_node_while_one_stands_still():
    talk = gang()
    still(talk)
    talk.fail("trainer/0")
    assert talk.replica("trainer/0").node == "node1"


def test_a_node_that_goes_on_is_used_again():
    talk = gang()
    still(talk)
    still(talk, "")
    assert talk.texts()[-1] == "node0: no process of flowdist is stopped any more"
    talk.fail("trainer/0")
    assert talk.replica("trainer/0").node == "node0"


def test_news_of_a_lost_or_unknown_node_change_nothing_and_one_that_comes_back_stands_no_more():
    talk = gang()
    still(talk)
    talk.gone("node0")
    still(talk, "its guardian (pid 3)")
    still(talk, node="node9")
    talk.join("node0")
    assert talk.job.nodes["node0"].stands_still == ""


def test_a_worker_that_is_stopped_is_named_and_its_node_is_used_all_the_same():
    talk = gang()
    for _ in range(2):
        talk.tell(ev.NodeStandsStill("node0", workers=(r("trainer/0"), r("trainer/7"))))
    assert talk.texts().count("node0: a worker of trainer/0 is stopped, by SIGSTOP or a debugger") == 1
    assert talk.job.incidents == [] and not talk.job.nodes["node0"].is_avoided
    [shown] = [each for each in status_of(talk.job, RecentDecisions()).replicas if each.is_stopped]
    assert shown.name == "trainer/0"
    assert "stopped, by SIGSTOP or a debugger: trainer/0 (node0)" in status_text(status_of(talk.job, RecentDecisions()))
    talk.tell(ev.NodeStandsStill("node0"))
    assert talk.texts()[-1] == "node0: no worker is stopped any more"
    assert not any(each.is_stopped for each in status_of(talk.job, RecentDecisions()).replicas)


def test_an_agent_reports_stopped_workers_with_their_replicas():
    talk = agents.Talk()
    workers = (r("trainer/0"),)
    assert talk.tell(io.StoodStill("", workers)) == [ev.NodeStandsStill("node0", "", workers)]
    assert talk.tell(io.StoodStill("", workers)) == []
    assert talk.tell(io.StoodStill()) == [ev.NodeStandsStill("node0")]


def test_an_agent_reports_a_change_once_and_again_when_it_has_connected_anew():
    talk = agents.Talk()
    report = ev.NodeStandsStill("node0", SPAWNER)
    assert talk.tell(io.StoodStill(SPAWNER)) == [report]
    assert talk.tell(io.StoodStill(SPAWNER)) == []
    talk.tell(io.Disconnected())
    assert talk.tell(io.Connected())[1:] == [report]
    assert talk.tell(io.StoodStill()) == [ev.NodeStandsStill("node0")]
    talk.tell(io.Disconnected())
    assert [type(each) for each in talk.tell(io.Connected())] == [msg.Join]
