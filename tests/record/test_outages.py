"""Time accounts while a server is away: waiting for it is no work, and what nobody has reported is unknown."""

from __future__ import annotations

import pytest

from flowdist.control.protocol import events as ev
from flowdist.control.protocol.ids import ReplicaId
from flowdist.graph import Gate, RoleGraph
from flowdist.record.accounts import goodput_of
from tests.control.harness import Talk, graph, r, restart, role
from tests.record.sheets import count, fail, finish, read, revive, save, seconds, stall, step, until

GATE = Gate("ps", "started", "reconnect")


def clients(*, servers: int = 1, **fields: object) -> Talk:
    server = role("ps", kind="service", max_replicas=servers, min_replicas=1, restart=restart("replica", 20))
    fields.setdefault("gates", (GATE,))
    made = graph(server, role("trainer", restart=restart(times=20), **fields))  # type: ignore[arg-type]
    talk = Talk(made)
    talk.join("node0")
    return talk


def outage(talk: Talk, since: float, until_s: float, name: str = "ps/0") -> None:
    """Let the server fail, and serve again at `until_s`."""
    talk.auto = False
    fail(talk, since, name)
    until(talk, until_s)
    talk.auto = True
    world = talk.world(talk.replica(name).world)
    if world.phase == "opening":
        talk.tell(ev.StoreOpened(world.name, world.generation, 1))
    talk.report(ev.ReplicaStarted, name)
    assert talk.replica(name).phase == "running"


def steps(talk: Talk, first: int, last: int, at: float, every: float = 1) -> None:
    """Report each step, the first of them at the time `at`."""
    for number in range(first, last + 1):
        step(talk, at + (number - first) * every, number)


def test_waiting_for_a_server_is_no_work_and_the_step_under_way_counts_as_long_as_usual():
    talk = clients()
    steps(talk, 1, 10, 1)
    outage(talk, 10.5, 20)
    steps(talk, 11, 20, 25)  # the workers connect again, and do the step that they had begun
    finish(talk, 34, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 20, "stalled": 14})


def test_goodput_does_not_rise_when_servers_die():
    without, with_two = clients(), clients()
    for talk in (without, with_two):
        steps(talk, 1, 10, 6)
    steps(without, 11, 30, 16)
    finish(without, 35, "trainer/0")
    outage(with_two, 15.5, 25)
    steps(with_two, 11, 20, 26)
    outage(with_two, 35.5, 45)
    steps(with_two, 21, 30, 46)
    finish(with_two, 55, "trainer/0")
    shares = [goodput_of(talk.graph, read(talk).spent()) for talk in (without, with_two)]
    assert shares == pytest.approx([30 / 35, 30 / 55])


def test_counted_steps_show_an_outage_as_well():
    talk = clients()
    for number in range(1, 6):
        count(talk, number, number)
    outage(talk, 5, 10)
    count(talk, 12, 6)
    finish(talk, 12, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 6, "stalled": 6})


def test_who_goes_on_without_the_server_works():
    talk = clients()
    steps(talk, 1, 10, 1)
    talk.auto = False
    fail(talk, 10.5, "ps/0")
    talk.auto = True
    steps(talk, 11, 20, 11)
    finish(talk, 20, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 20})


def test_a_world_without_reports_of_steps_waits_until_its_server_is_back():
    talk = clients()
    save(talk, 5)
    outage(talk, 10, 20)
    save(talk, 30)
    finish(talk, 30, "trainer/0")
    assert seconds(read(talk)) == {"productive": 20, "stalled": 10}


def test_what_is_under_way_does_not_count_before_the_next_step():
    talk = clients()
    steps(talk, 1, 10, 1)
    outage(talk, 10, 20)
    sheet = read(talk)
    assert seconds(sheet, now=15) == seconds(sheet) == {"productive": 10, "stalled": 10}
    assert seconds(sheet, now=30) == {"productive": 10, "stalled": 20}
    fail(talk, 25)
    finish(talk, 26, "trainer/0")
    assert seconds(read(talk)) == {"productive": 10, "stalled": 15, "start-up": 1}


def test_a_server_that_stands_still_keeps_its_clients_waiting():
    talk = clients()
    steps(talk, 1, 10, 1)
    stall(talk, 20, "ps/0")  # it has shown no sign for 10 s
    revive(talk, 30, "ps/0")
    step(talk, 31, 11)
    finish(talk, 31, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 11, "stalled": 20})


def test_a_server_that_goes_on_by_itself_has_stood_still_until_then():
    talk = clients()
    steps(talk, 1, 10, 1)
    stall(talk, 20, "ps/0")  # it has shown no sign for 10 s
    revive(talk, 21, "ps/0")
    step(talk, 22, 11)
    stall(talk, 22, "ps/0", seen=False)  # nobody has seen it stand still
    revive(talk, 23, "ps/0")
    step(talk, 23, 12)
    finish(talk, 23, "trainer/0")
    sheet = read(talk)
    assert seconds(sheet, "ps") == {"productive": 12, "stalled": 11}
    assert seconds(sheet) == pytest.approx({"productive": 12, "stalled": 11})


@pytest.mark.parametrize(
    ("fault", "stalled"),
    [
        pytest.param("ps/0:pause/5s", 5, id="it goes on"),
        pytest.param("ps/0:hang", 10, id="it never goes on"),
        pytest.param("node0:pause/5s", 5, id="its node is paused"),
        pytest.param("ps/0:slow=4x/5s", 0, id="it is slow, and serves"),
        pytest.param("trainer/0:pause/5s", 0, id="a task is paused"),
    ],
)
def test_a_server_is_productive_but_for_the_time_in_which_a_fault_stops_it(fault: str, stalled: float):
    talk = clients()
    until(talk, 20)
    assert seconds(read(talk, (10, fault)), "ps").get("stalled", 0) == stalled
    assert seconds(read(talk, (10, fault)), "ps")["productive"] == 20 - stalled


@pytest.mark.parametrize("target", ["ps/0", "trainer/0.0", "node0"])
def test_a_fault_that_ends_nobody_is_seen_by_the_next_step(target: str):
    talk = clients()
    steps(talk, 1, 10, 1)
    step(talk, 20, 11)
    step(talk, 22, 12)
    finish(talk, 22, "trainer/0")
    assert seconds(read(talk, (10.5, target))) == pytest.approx({"productive": 13, "stalled": 9})
    assert seconds(read(talk, (10.5, "trainer/7"))) == {"productive": 22}


@pytest.mark.parametrize("name", ["ps/0", "trainer/0"])
def test_while_a_worker_is_stopped_its_world_and_who_needs_it_do_no_work(name: str):
    """A debugger, or SIGSTOP. The node says so a little later, and the next step shows since when."""
    talk = clients()
    steps(talk, 1, 10, 1)
    until(talk, 12)
    talk.tell(ev.NodeStandsStill("node0", workers=(r(name),)))
    until(talk, 60)
    talk.tell(ev.NodeStandsStill("node0"))
    assert seconds(read(talk)) == {"productive": 10, "stalled": 50}
    steps(talk, 11, 20, 61)
    finish(talk, 70, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 20, "stalled": 50})
    stalled = {"productive": 22, "stalled": 48} if name == "ps/0" else {"productive": 70}
    assert seconds(read(talk), "ps") == stalled


def test_a_server_that_is_not_wanted_any_more_is_waited_for_by_nobody():
    talk = clients(servers=2)
    steps(talk, 1, 10, 1)
    talk.auto = False
    fail(talk, 10, "ps/1")
    talk.tell(ev.ScaleRequested("ps", 1))
    talk.auto = True
    step(talk, 15, 11)
    step(talk, 40, 12)  # a slow step, and no outage
    finish(talk, 40, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 11 + 25, "stalled": 4})


def test_saving_in_an_outage_is_saving_and_keeps_no_more_than_was_done():
    talk = clients()
    steps(talk, 1, 10, 1)
    outage(talk, 10, 18)
    talk.tell(ev.ReplicaSpent(ReplicaId("trainer", 0), 1, "saving", 2 * 10**9))
    save(talk, 20, 11)
    step(talk, 20, 11)
    fail(talk, 20)
    finish(talk, 21, "trainer/0")
    assert seconds(read(talk)) == pytest.approx({"productive": 11, "checkpoint": 2, "stalled": 7, "start-up": 1})


def silent_and_loud() -> RoleGraph:
    roles = (role("trainer", restart=restart()), role("aside", primary=False, restart=restart()))
    return graph(*roles)


def test_the_goodput_is_that_of_the_tasks_whose_work_is_known():
    talk = Talk(silent_and_loud())
    talk.join("node0")
    assert goodput_of(talk.graph, read(talk).spent(10)) is None
    steps(talk, 1, 10, 1)
    until(talk, 20)
    talk.tell(ev.CancelRequested("enough"))
    sheet = read(talk)
    assert seconds(sheet, "aside") == {"unknown": 20}
    assert goodput_of(talk.graph, sheet.spent()) == 1
