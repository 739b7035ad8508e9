"""Whether flowdist's own processes are started again: counted by hand, with the words that people read."""

from __future__ import annotations

import pytest

from flowdist.control.fork_policy import PrefixUpkeep
from flowdist.control.process_restarts import AgentUpkeep, ControllerUpkeep, Next, why_nodes_are_too_few
from flowdist.graph import MINUTE, MS, SECOND


def test_an_agent_that_dies_is_started_again_at_once_five_times_and_then_no_more():
    agent = AgentUpkeep("node1.log")
    assert [agent.died(SECOND) for _ in range(5)] == [Next(0, "its agent died")] * 5
    assert agent.died(SECOND) == Next(None, "its agent died 6 times and is not started again (see node1.log)")
    assert agent.died(SECOND) == Next(None, "its agent died 7 times and is not started again (see node1.log)")


def test_an_agent_that_dies_now_and_then_for_weeks_is_always_started_again():
    agent = AgentUpkeep("node1.log")
    assert all(agent.died(10 * MINUTE).after_ns == 0 for _ in range(1000))


def test_the_exception_that_has_ended_an_agent_is_named():
    agent = AgentUpkeep("node1.log")
    assert agent.died(0, "KeyError: 'x'") == Next(0, "its agent died of KeyError: 'x'")
    for _ in range(5):
        last = agent.died(0, "KeyError: 'x'")
    assert last.because == "its agent died 6 times, last of KeyError: 'x', and is not started again (see node1.log)"


def test_an_agent_comes_back_when_its_fault_says_so_and_that_counts_for_nothing():
    agent = AgentUpkeep("node1.log")
    for _ in range(9):
        assert agent.taken_away(3 * SECOND) == Next(3 * SECOND, "killed by a fault")
    assert agent.taken_away(0).after_ns == 0
    assert agent.died(0) == Next(0, "its agent died")


def test_an_agent_that_a_fault_takes_for_good_does_not_come_back():
    assert AgentUpkeep("node1.log").taken_away(None) == Next(None, "killed by a fault")


def test_a_fault_brings_an_agent_back_though_its_deaths_were_too_many():
    agent = AgentUpkeep("node1.log")
    for _ in range(6):
        agent.died(0)
    assert agent.taken_away(SECOND).after_ns == SECOND


def test_a_run_ends_when_all_of_its_nodes_are_given_up_unless_other_hosts_may_join():
    nodes, log = ["node0", "node1"], "runs/x/node1.log"
    assert why_nodes_are_too_few(nodes, {"node1"}, 1, log, others_may_join=False) == ""
    because = "no node of this run is left; everything was stopped (see runs/x/node1.log)"
    assert why_nodes_are_too_few(nodes, {"node1", "node0"}, 1, log, others_may_join=False) == because
    assert why_nodes_are_too_few(nodes, {"node1", "node0"}, 1, log, others_may_join=True) == ""


def test_a_run_ends_when_fewer_nodes_are_left_than_its_job_starts_on():
    because = "only 1 of at least 2 nodes are left; everything was stopped (see node1.log)"
    assert why_nodes_are_too_few(["node0", "node1"], {"node1"}, 2, "node1.log", others_may_join=False) == because
    assert why_nodes_are_too_few(["node0", "node1"], {"node1"}, 2, "node1.log", others_may_join=True) == ""


def test_r21_another_controller_takes_over_at_once_and_the_next_ones_after_longer_and_longer_pauses():
    controllers = ControllerUpkeep("runs/x")
    because = "the controller died: another takes over from the journal"
    pauses = [0, 50 * MS, 100 * MS, 200 * MS, 400 * MS, 800 * MS, 1600 * MS, 2 * SECOND, 2 * SECOND]
    assert [controllers.died(0, "crash") for _ in pauses] == [Next(pause, because) for pause in pauses]


def test_r21_after_a_controller_that_has_served_the_next_one_starts_at_once_however_many_have_died():
    controllers = ControllerUpkeep("runs/x")
    assert [controllers.died(SECOND, "crash").after_ns for _ in range(9)] == [0] * 9


def test_the_exception_that_has_ended_a_controller_is_named():
    controllers = ControllerUpkeep("runs/x")
    because = "the controller died of KeyError: 'x': another takes over from the journal"
    assert controllers.died(0, "crash", "KeyError: 'x'") == Next(0, because)


@pytest.mark.parametrize("lived_ns", [0, 2 * SECOND])
def test_controllers_that_die_in_quick_succession_are_given_up(lived_ns: int):
    controllers = ControllerUpkeep("runs/x")
    assert all(controllers.died(lived_ns, "crash").after_ns is not None for _ in range(9))
    given_up = controllers.died(0, "crash", "KeyError: 'x'")
    assert given_up == Next(None, "the controller died again and again; the last died of KeyError: 'x'")


def test_deaths_of_controllers_that_served_for_a_minute_do_not_add_up():
    controllers = ControllerUpkeep("runs/x")
    assert all(controllers.died(MINUTE, "crash").after_ns == 0 for _ in range(1000))


def test_a_controller_that_dies_every_twenty_seconds_is_given_up_in_the_end():
    controllers = ControllerUpkeep("runs/x")
    assert [controllers.died(20 * SECOND, "crash").after_ns is None for _ in range(20)].index(True) == 13


def test_a_journal_that_cannot_be_written_gets_a_second_each_time_and_is_given_up_as_soon():
    controllers = ControllerUpkeep("runs/x")
    because = "the journal cannot be written: is there room on the disk of runs/x?"
    assert [controllers.died(0, "journal lost") for _ in range(9)] == [Next(SECOND, because)] * 9
    assert controllers.died(0, "journal lost") == Next(None, because)


def test_a_run_that_is_to_end_waits_for_three_controllers_and_no_more():
    controllers = ControllerUpkeep("runs/x")
    assert [controllers.died(0, "crash", is_ending=True).after_ns is None for _ in range(3)] == [False, False, True]


def test_a_prefix_that_dies_after_its_split_is_run_again_twice():
    prefix = PrefixUpkeep()
    for _ in range(2):
        prefix.died("signal KILL", is_ready=True)
        assert not prefix.useless
    prefix.died("signal KILL", is_ready=True)
    assert prefix.useless == "its template died 3 times"


def test_a_prefix_that_dies_before_its_split_is_not_run_again():
    prefix = PrefixUpkeep()
    prefix.died("exit 1", is_ready=False)
    assert prefix.useless == "its process ended before it asked for its rank: exit 1"


def test_a_prefix_that_is_slow_or_must_not_be_forked_from_is_of_no_use():
    slow, unsafe = PrefixUpkeep(), PrefixUpkeep()
    slow.is_slow(60.0)
    unsafe.is_unsafe("it has run a thread")
    assert slow.useless == "it runs for more than 60 s before it asks for its rank"
    assert unsafe.useless == "it has run a thread"
