"""Whether flowdist's own processes are started again: counted by hand, with the words that people read."""

from __future__ import annotations

from flowdist.control.fork_policy import ForkServerUpkeep
from flowdist.control.process_restarts import AgentUpkeep, ControllerUpkeep, Next
from flowdist.graph import MS, SECOND


def test_an_agent_that_dies_is_started_again_at_once_five_times_and_then_no_more():
    agent = AgentUpkeep("node1.log")
    assert [agent.died() for _ in range(5)] == [Next(0, "its agent died")] * 5
    assert agent.died() == Next(None, "its agent died 6 times and is not started again (see node1.log)")
    assert agent.died() == Next(None, "its agent died 7 times and is not started again (see node1.log)")


def test_an_agent_comes_back_when_its_fault_says_so_and_that_counts_for_nothing():
    agent = AgentUpkeep("node1.log")
    for _ in range(9):
        assert agent.taken_away(3 * SECOND) == Next(3 * SECOND, "killed by a fault")
    assert agent.taken_away(0).after_ns == 0
    assert agent.died() == Next(0, "its agent died")


def test_an_agent_that_a_fault_takes_for_good_does_not_come_back():
    assert AgentUpkeep("node1.log").taken_away(None) == Next(None, "killed by a fault")


def test_a_fault_brings_an_agent_back_though_its_deaths_were_too_many():
    agent = AgentUpkeep("node1.log")
    for _ in range(6):
        agent.died()
    assert agent.taken_away(SECOND).after_ns == SECOND


def test_r21_another_controller_takes_over_at_once_and_the_next_after_a_moment():
    controllers = ControllerUpkeep("runs/x")
    because = "the controller died: another takes over from the journal"
    assert controllers.died(journal_lost=False) == Next(0, because)
    assert controllers.died(journal_lost=False) == Next(50 * MS, because)


def test_a_line_of_the_journal_starts_the_count_of_controllers_anew():
    controllers = ControllerUpkeep("runs/x")
    for _ in range(300):
        assert controllers.died(journal_lost=False).after_ns == 0
        controllers.wrote()


def test_controllers_that_come_to_nothing_are_given_up_with_the_hundredth():
    controllers = ControllerUpkeep("runs/x")
    assert all(controllers.died(journal_lost=False).after_ns is not None for _ in range(99))
    assert controllers.died(journal_lost=False) == Next(None, "the controller died again and again")


def test_a_journal_that_cannot_be_written_gets_a_second_and_is_given_up_sooner():
    controllers = ControllerUpkeep("runs/x")
    because = "the journal cannot be written: is there room on the disk of runs/x?"
    assert [controllers.died(journal_lost=True) for _ in range(9)] == [Next(SECOND, because)] * 9
    assert controllers.died(journal_lost=True).after_ns is None


def test_a_fork_server_that_dies_is_started_again_twice():
    server = ForkServerUpkeep()
    for _ in range(2):
        server.died("signal KILL", is_ready=True)
        assert not server.useless
    server.died("signal KILL", is_ready=True)
    assert server.useless == "its fork server died 3 times"


def test_a_fork_server_that_dies_while_it_imports_is_not_started_again():
    server = ForkServerUpkeep()
    server.died("exit 1", is_ready=False)
    assert server.useless == "its fork server died while it imported: exit 1"


def test_a_fork_server_that_is_slow_or_must_not_be_forked_from_is_of_no_use():
    slow, unsafe = ForkServerUpkeep(), ForkServerUpkeep()
    slow.is_slow(60.0)
    unsafe.is_unsafe("it has run a thread")
    assert (slow.useless, unsafe.useless) == ("its imports take more than 60 s", "it has run a thread")
