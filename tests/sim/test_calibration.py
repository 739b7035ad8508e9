"""Times of workers are measured in conversations whose times are known, and simulated with what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.controller import Controller
from flowdist.control.protocol import events as ev
from flowdist.errors import FlowdistError
from flowdist.graph import MS, SECOND, Readiness
from flowdist.record.journal import FaultLine, Header, Line, Record, record
from flowdist.record.reader import WholeRecord
from flowdist.sim.calibration.calibration import Calibration, calibrate, calibrated
from flowdist.sim.calibration.counted import counted_length
from flowdist.sim.calibration.file import calibration_text, read_calibration
from flowdist.sim.calibration.fit import ORDER_NS, RoleTimes, distribution, rounded
from flowdist.sim.calibration.observe import Observed, observe
from flowdist.sim.experiment.predict import losses_of, predict
from flowdist.testing import simulate
from tests.control.harness import Talk, graph, joined, r, restart, role
from tests.record.sheets import count, fail, finish, save, step, trainers, until


def measured(*talks: Talk, name: str = "trainer") -> RoleTimes:
    return calibrate([observe(*told(talk)) for talk in talks]).roles[name]


def told(talk: Talk) -> tuple[Header, list[Line]]:
    names = tuple(spec.name for spec in talk.graph.cluster.nodes)
    controller, lines = Controller(talk.graph, names), list[Line]()
    for number, (event, now) in enumerate(talk.record, 1):
        lines.append(record(number, now, event, controller.handle(event, now)))
    return Header(talk.graph, names), lines


def work(talk: Talk, at: float, first: int, last: int, step_s: float, save_every: int = 0, save_s: float = 0) -> float:
    """Do steps from the time `at`. The first is reported at once, then the newest each half second, as by an agent.

    A report may fall into a save, whose time is in the next interval then. Return when the last step is done.
    """
    done, saved = dict[float, int](), dict[float, int]()
    for number in range(first, last + 1):
        at += step_s
        done[at] = number
        if save_every and number % save_every == 0:
            at += save_s
            saved[at] = number
    reports, newest = dict[float, int](), 0.0
    for when, number in done.items():
        due = max(when, newest + 0.5) if reports else when
        if newest >= when:  # a report that is due later already has this step
            reports[newest] = number
        elif due < at:
            reports[due], newest = number, due
    for when, number in sorted([*reports.items(), *saved.items()]):
        (save if saved.get(when) == number else step)(talk, when, number)
    return at


def test_a_step_and_an_unreported_checkpoint_are_told_apart():
    talk = trainers()
    end = work(talk, 7, 1, 400, 0.047, save_every=80, save_s=2)
    step(talk, end + 0.3, 400)  # the agent reports the last step with the exit
    finish(talk, end + 0.3, "trainer/0")
    found = measured(talk)
    assert found.fields["step_ns"] == pytest.approx(47 * MS, rel=0.02)
    assert found.fields["checkpoint_every_ns"] == 80 * found.fields["step_ns"]
    assert found.fields["checkpoint_ns"] == pytest.approx(2 * SECOND, rel=0.05)
    assert found.fields["checkpoint_blocks_ns"] is None and not found.tells_saving
    assert found.fields["steps"] == 400


def test_saving_that_is_reported_is_taken_as_reported():
    talk = trainers()
    at = 7.0
    for number in range(1, 41):
        at += 0.1
        step(talk, at, number)
        if number % 4 == 0:
            at += 0.7
            until(talk, at)
            talk.tell(ev.ReplicaSpent(r("trainer/0"), 1, "saving", number // 4 * 700 * MS))
            save(talk, at, number)
    finish(talk, at + 0.3, "trainer/0")
    found = measured(talk)
    assert found.fields["step_ns"] == pytest.approx(100 * MS, rel=0.01) and found.tells_saving
    assert found.fields["checkpoint_ns"] == pytest.approx(700 * MS, rel=0.05)
    assert found.measured["save, blocking"].times == 10
    assert found.fields["finish_ns"] == pytest.approx(1 * SECOND, rel=0.01), "the save of the last step is in it"


def test_saving_that_is_reported_is_known_even_if_each_checkpoint_is_followed_by_a_failure():
    """Then no two reports have a checkpoint between them, and the cost of saving is not 0 all the same."""
    talk = trainers()
    at = work(talk, 7, 1, 20, 0.1) + 2
    until(talk, at)
    talk.tell(ev.ReplicaSpent(r("trainer/0"), 1, "saving", 2 * SECOND))
    save(talk, at, 20)
    fail(talk, at + 0.05)
    found = measured(talk)
    assert found.fields["checkpoint_ns"] == 2 * SECOND and found.fields["checkpoint_blocks_ns"] is None


def test_a_checkpoint_in_the_background_blocks_for_less_than_it_takes():
    talk = trainers()
    at, saves = 7.0, []
    for number in range(1, 301):
        at += 0.1
        while saves and saves[0][0] <= at:
            save(talk, *saves.pop(0))
        step(talk, at, number)
        if number % 50 == 0:
            at += 0.2
            until(talk, at)
            talk.tell(ev.ReplicaSpent(r("trainer/0"), 1, "saving", number // 50 * 200 * MS))
            saves.append((at + 1.8, number))
    finish(talk, at + 0.1, "trainer/0")
    found = measured(talk).fields
    assert found["checkpoint_blocks_ns"] == pytest.approx(240 * MS, rel=0.2)
    assert found["checkpoint_ns"] == pytest.approx(2 * SECOND, rel=0.1)


def test_cold_and_warm_starts_and_restores_are_measured_each_for_itself():
    talk = trainers()
    work(talk, 19.3, 1, 100, 0.1, save_every=20)
    fail(talk, 40)
    until(talk, 41.5)
    talk.tell(ev.ReplicaSpent(r("trainer/0"), 2, "restoring", 400 * MS))
    work(talk, 41.5, 101, 200, 0.1, save_every=20)
    found = measured(talk)
    assert found.fields["startup_ns"] == pytest.approx(19.3 * SECOND - ORDER_NS, rel=0.01)
    assert found.fields["warm_startup_ns"] == pytest.approx(1.1 * SECOND - ORDER_NS, rel=0.01)
    assert found.fields["restore_ns"] == 400 * MS
    assert (found.measured["cold start"].times, found.measured["warm start"].times) == (1, 1)


def test_workers_that_wait_for_the_imports_of_their_node_start_warm():
    made = graph(role("trainer", restart=restart(times=3, backoff_ns=0)), nodes=1)
    talk = Talk(made)
    talk.auto = False
    talk.tell(ev.NodeJoined("node0", made.cluster.nodes[0], is_warming=True))
    talk.tell(ev.StoreOpened("trainer", 1, 29500))
    until(talk, 6)
    talk.tell(ev.NodeWarm("node0"))
    talk.tell(ev.ReplicaStarted(r("trainer/0"), 1))
    work(talk, 7, 1, 50, 0.1)
    found = measured(talk)
    assert found.fields["import_ns"] == 6 * SECOND
    assert found.fields["startup_ns"] == pytest.approx(1 * SECOND - ORDER_NS, rel=0.01)


def test_a_service_has_a_start_up_alone():
    ps = role("ps", kind="service", ready=Readiness("call"), restart=restart(times=3, backoff_ns=0))
    talk = joined(ps, auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 29500))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1))
    until(talk, 4)
    talk.tell(ev.ReplicaReady(r("ps/0"), 1))
    found = measured(talk, name="ps")
    assert found.fields == {"startup_ns": rounded(4 * SECOND - ORDER_NS)}
    assert "warm start" in found.unknown[0]


def test_a_service_without_a_readiness_check_serves_as_soon_as_it_runs():
    """No record shows how long it starts up: it is not played with the 5 s of a role of which nothing is known."""
    talk = joined(role("ps", kind="service", restart=restart(times=3, backoff_ns=0)), auto=False)
    talk.tell(ev.StoreOpened("ps/0", 1, 29500))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 1))
    until(talk, 4)
    found = measured(talk, name="ps")
    assert found.fields == {"startup_ns": 0} and "ready_when=" in found.unknown[0]


def test_what_the_runs_cannot_tell_is_said():
    talk = trainers()
    work(talk, 7, 1, 30, 0.1)
    unknown = " ".join(measured(talk).unknown)
    for words in ("checkpoints", "a warm start", "restoring", "warm-up", "imports of a node"):
        assert words in unknown
    never = Talk(graph(role("trainer", restart=restart(times=1))))
    assert measured(never).unknown == ("it never started",)


def test_steps_during_an_incident_of_another_role_do_not_count():
    """A step that waits for a server is no longer step: without the filter the mean would be 0.19 s."""
    ps = role("ps", kind="service", ready=Readiness("call"), restart=restart(times=3, backoff_ns=0))
    talk = joined(ps, role("trainer", restart=restart(times=3, backoff_ns=0)))
    at = work(talk, 2, 1, 50, 0.1)
    talk.auto = False
    fail(talk, at, "ps/0")
    talk.tell(ev.StoreOpened("ps/0", 2, 29501))
    talk.tell(ev.ReplicaStarted(r("ps/0"), 2))
    until(talk, at + 9)
    talk.tell(ev.ReplicaReady(r("ps/0"), 2))
    work(talk, at + 9, 51, 100, 0.1)
    assert measured(talk).fields["step_ns"] == pytest.approx(100 * MS, rel=0.03)


def test_step_times_of_two_sizes_become_a_table_if_they_differ():
    def of_size(count: int, step_s: float) -> Talk:
        talk = trainers(count)
        work(talk, 3, 1, 50, step_s)
        return talk

    assert measured(of_size(1, 0.2), of_size(2, 0.1)).fields["step_times"] == (
        (1, pytest.approx(200 * MS, rel=0.03)),
        (2, pytest.approx(100 * MS, rel=0.03)),
    )
    assert measured(of_size(1, 0.101), of_size(2, 0.1)).fields["step_times"] == ()


# The simulator with these times.


def grown(**more: str) -> dict[int, float]:
    """Return the seconds from the opening of each incident to the next step: a node is away for five seconds."""
    t = Topology("grown", nodes=3 * [Node(cpu=1)])
    load = Workload(steps=60, startup="10s", warm_startup="1s", checkpoint_every="10s", **more)  # type: ignore[arg-type]
    t.role("trainer", "true", replicas="2:3", restart=Restart("role", backoff="0s"), cooldown="1s", workload=load)
    result = simulate(t, "node2@30s/5s")
    return {one.number: (one.first_step_ns or 0) / 1e9 for one in result.job.incidents}


def test_a_restart_is_warm_and_a_node_that_joins_imports_before_the_world_grows():
    t = Topology("grown", nodes=3 * [Node(cpu=1)])
    load = Workload(
        steps=60, startup="10s", warm_startup="1s", import_time="7s", finish_time="2s", checkpoint_every="10s"
    )
    t.role("trainer", "true", replicas="2:3", restart=Restart("role", backoff="0s"), cooldown="1s", workload=load)
    result = simulate(t, "node2@30s/5s")
    opened = [one.opened_ns / 1e9 for one in result.job.incidents]
    assert opened == pytest.approx([30, 35 + 7], abs=0.1), "the node is back after 5 s, and imports for 7 s"
    took = [(one.first_step_ns or 0) / 1e9 for one in result.job.incidents]
    assert took == pytest.approx([2, 2], abs=0.2), "one second of start-up and the first step"
    begun = next(
        line.t_ns for line in result.lines if isinstance(line, Record) and isinstance(line.event, ev.ReplicaStarted)
    )
    assert begun == pytest.approx(7 * SECOND, rel=0.01), "the first workers wait for the imports of their nodes"


def test_without_imports_the_first_start_on_a_node_is_cold():
    assert grown() == pytest.approx({1: 2.1, 2: 11.1}, abs=0.2)


def test_workers_exit_after_the_finish_and_stop_after_their_time():
    def lasted(**more: str) -> float:
        t = Topology("ends", nodes=2 * [Node(cpu=1)])
        t.role(
            "trainer",
            "true",
            replicas=2,
            restart=Restart(max_restarts=1, backoff="0s"),
            workload=Workload(steps=60, **more),
        )  # type: ignore[arg-type]
        return simulate(t, "trainer/1@20s").now / 1e9

    usual = lasted()
    assert lasted(finish_time="4s") == pytest.approx(usual + 4)
    assert lasted(stop_time="600ms") == pytest.approx(usual + 0.5)


# The file.


def example() -> Calibration:
    talk = trainers()
    end = work(talk, 7, 1, 400, 0.047, save_every=80, save_s=2)
    step(talk, end + 0.3, 400)  # the agent reports the last step with the exit
    finish(talk, end + 0.3, "trainer/0")
    return calibrate([observe(*told(talk))])


def test_the_file_is_read_as_it_was_written(tmp_path: Path):
    path, found = tmp_path / "workload.toml", example()
    path.write_text(calibration_text(found, ["runs/a"]))
    read = read_calibration(path)
    assert read.roles["trainer"].fields == found.roles["trainer"].fields
    assert read.arrival_ns == found.arrival_ns
    given = trainers().graph
    assert calibrated(given, read) == calibrated(given, found)
    assert calibrated(given, read, ["trainer.step_ns"]).role("trainer").workload.step_ns == SECOND


def test_a_table_of_step_times_is_read_as_it_was_written(tmp_path: Path):
    path = tmp_path / "workload.toml"
    fields = {"step_ns": 100 * MS, "step_times": ((1, 200 * MS), (2, 100 * MS)), "batch_workers": 0}
    path.write_text(calibration_text(Calibration({"trainer": RoleTimes(fields)}), []))
    assert read_calibration(path).roles["trainer"].fields == fields


def test_all_problems_of_a_file_are_reported_at_once_each_with_its_line(tmp_path: Path):
    path = tmp_path / "workload.toml"
    path.write_text(
        'format = 9\nspeed = 1\n[job]\narrival = 3\n[roles.trainer]\nsteps = 0\nstep_time = "50"\n'
        'step_tme = "1s"\nstartup = -1\nstartup_spread = 2\ncheckpoint_blocks = "2s"\n'
        '[roles."b c"]\ncheckpoint_time = "1s"\n'
        'checkpoint_blocks = "2s"\n[roles.c]\nstep_time = { 0 = "1s" }\n'
    )
    with pytest.raises(FlowdistError) as error:
        read_calibration(path)
    places = [line.removeprefix(f"{path}:").partition(":") for line in error.value.message.splitlines()]
    assert sorted(int(number) for number, _, _ in places) == [1, 2, 4, 6, 7, 8, 9, 10, 11, 14, 16]
    assert "did you mean 'step_time'" in error.value.message and "'50'" not in error.value.message


@pytest.mark.parametrize("content", [b"roles = 3\n", b"[roles]\ntrainer = 3\n", b"\xff\xfe", b"[roles", b"job = []\n"])
def test_a_file_of_another_kind_is_refused_in_words(tmp_path: Path, content: bytes):
    path = tmp_path / "workload.toml"
    path.write_bytes(content)
    with pytest.raises(FlowdistError, match=r"workload\.toml"):
        read_calibration(path)
    with pytest.raises(FlowdistError, match="cannot be read"):
        read_calibration(tmp_path / "missing.toml")


def test_a_distribution_has_its_quantiles_and_a_text():
    found = distribution([3 * SECOND, SECOND, 2 * SECOND])
    assert found is not None and (found.times, found.median_ns, found.mean_ns) == (3, 2 * SECOND, 2 * SECOND)
    assert found.text == "2s (1s to 3s, 3 times)" and distribution([]) is None
    assert found.least_ns <= found.p10_ns <= found.median_ns <= found.p90_ns <= found.most_ns
    assert rounded(123_456_789) == 123_500_000 and rounded(9) == 9


def test_the_fault_of_a_real_run_names_the_replica_that_it_hit():
    """A journal has `trainer/1/attempt_2/0`. What was hit was once compared with that, and never found."""
    assert FaultLine(1, "trainer/1@3s", "trainer/1/attempt_2/0").hit == "trainer/1"
    assert FaultLine(1, "node1@3s", "node1").hit == "node1" and FaultLine(1, "ps/0.1@3s").hit == "ps/0.1"


def test_a_report_that_is_repeated_to_the_next_controller_is_no_slow_step() -> None:
    """In the second generation the agent repeats at 850 s that one step is done, which it was at 606 s."""
    t = Topology("again", nodes=2 * [Node(cpu=1)])
    load = Workload(steps=1800, checkpoint_every="12m", checkpoint_time="1s")
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=9), workload=load)
    result = simulate(t, "trainer/1@600s", "controller@850s")
    header, *lines = result.lines
    assert isinstance(header, Header)
    times = calibrate([observe(header, lines)]).roles["trainer"].fields
    assert times["step_ns"] == pytest.approx(SECOND, rel=0.005)
    assert times["checkpoint_every_ns"] == pytest.approx(720 * SECOND, rel=0.005)


def killed_at_300(*, is_counted: bool) -> Talk:
    """Return a job that resumes from step 240. Its first optimizer step of each attempt may be counted as well."""
    talk = trainers()
    if is_counted:
        count(talk, 7.047, 1)
    end = work(talk, 7, 1, 300, 0.047, save_every=80)
    step(talk, end, 300)
    fail(talk, end + 0.01)
    if is_counted:
        count(talk, end + 5.047, 1)
    end = work(talk, end + 5, 241, 400, 0.047, save_every=80)
    step(talk, end, 400)
    finish(talk, end + 0.1, "trainer/0")
    return talk


def test_counted_steps_change_nothing_once_the_script_reports_its_own() -> None:
    """The count of the first step was once taken for the step from which an attempt resumed: no loss was known."""
    both, alone = (observe(*told(killed_at_300(is_counted=counts))) for counts in (True, False))
    lost = [[loss.ns for loss in losses_of(one, calibrate([one]))] for one in (both, alone)]
    assert lost[0] == lost[1] and sum(lost[0]) == pytest.approx(60 * 47 * MS, rel=0.02)
    assert calibrate([both]).roles["trainer"].fields == calibrate([alone]).roles["trainer"].fields
    assert not any(mark.is_count for one in both.generations for mark in one.clock)


def test_a_member_that_reports_its_steps_stands_for_those_whose_steps_are_counted() -> None:
    talk = trainers(2)
    for number in range(1, 41):
        count(talk, 7 + number, number, "trainer/1")
        if number % 4 == 0:
            step(talk, 7 + number, number + 100)
    (one,) = observe(*told(talk)).generations
    assert one.reached == 140 and [mark.step for mark in one.clock] == list(range(104, 141, 4))
    assert one.first is not None and one.first.at_ns == 8 * SECOND, "the first step is known from its count"


def test_a_script_with_a_checkpoint_of_its_own_has_lost_what_it_reports_again() -> None:
    """Without any commit, the steps before the first one that is reported again are not lost."""
    talk = trainers()
    end = work(talk, 7, 1, 300, 0.1)
    step(talk, end, 300)
    fail(talk, end + 0.01)
    work(talk, end + 5, 271, 400, 0.1)
    run = observe(*told(talk))
    assert sum(loss.ns for loss in losses_of(run, calibrate([run]))) == pytest.approx(3 * SECOND, rel=0.02)


# Optimizer steps that are counted: each attempt begins at 0, and the script's own numbers are not known.


def counted(*attempts: int, commits: dict[int, int] | None = None, is_over: bool = True) -> Talk:
    """Return a job whose attempts count so many steps of 100 ms; all but the last fail.

    Args:
        attempts: The last count of each attempt.
        commits: The number under which the script commits after so many counted steps of an attempt.
        is_over: The last attempt succeeds.
    """
    talk = trainers()
    at = 7.0
    for number, steps in enumerate(attempts, 1):
        for done in range(1, steps + 1):
            at += 0.1
            if done in (1, steps) or done % 5 == 0:
                count(talk, at, done)
            if commits and number == 1 and done in commits:
                save(talk, at, commits[done])
        at += 0.2
        if number < len(attempts) or not is_over:
            fail(talk, at)
            at += 2
    if is_over:
        finish(talk, at, "trainer/0")
    return talk


def seen(*talks: Talk) -> list[Observed]:
    return [observe(*told(talk)) for talk in talks]


def test_an_attempt_that_succeeds_without_a_restart_shows_the_number_of_counted_steps():
    found = measured(counted(200))
    assert (found.fields["steps"], found.length, found.silent) == (200, "known", ())
    assert found.fields["finish_ns"] == pytest.approx(200 * MS, rel=0.02)


def test_after_a_restart_the_steps_of_the_attempt_that_succeeded_are_played_and_a_sentence_says_so():
    found = measured(counted(80, 200))
    assert (found.fields["steps"], found.length) == (200, "guessed")
    assert found.fields["checkpoint_every_ns"] > 200 * found.fields["step_ns"], "nothing is saved"
    (text,) = found.silent
    assert "played as 200 counted steps, and all of them again after each restart" in text


@pytest.mark.parametrize("talk", [counted(80, is_over=False), counted(150, 60)], ids=["it failed", "it resumed"])
def test_counts_that_do_not_show_the_number_of_steps_are_no_number(talk: Talk) -> None:
    """The 600 steps of a topology that says nothing were once played instead."""
    found = measured(talk)
    assert "steps" not in found.fields and found.length == "unknown"
    assert any("its number of steps" in text for text in found.unknown)


@pytest.mark.parametrize("per_commit", [1, 10])
def test_commits_show_where_an_attempt_began_also_if_they_are_numbered_by_epochs(per_commit: int) -> None:
    commits = {done: done // per_commit for done in (20, 40, 60)}
    found = measured(counted(80, 140, commits=commits))
    assert found.fields["steps"] == pytest.approx(200, abs=3) and found.length == "known" and not found.silent
    assert found.fields["checkpoint_every_ns"] == pytest.approx(20 * 100 * MS, rel=0.05)


def test_a_run_without_failures_shows_what_a_restart_of_another_run_did_again():
    found = measured(counted(200), counted(80, 140))
    assert (found.fields["steps"], found.length, found.silent) == (200, "known", ())
    assert found.fields["checkpoint_every_ns"] == pytest.approx(2 * 20 * 100 * MS, rel=0.02)
    generations = [one for run in seen(counted(200), counted(80, 200)) for one in run.generations]
    assert counted_length(generations).lost == 80, "it began anew"


def test_a_run_whose_steps_were_counted_is_predicted_with_the_number_of_steps_of_the_calibration():
    times = calibrate(seen(counted(200), counted(80, 140)))
    found = predict(WholeRecord("run", *told(counted(80, 140))), times)
    total, *others = found.figures
    assert total.error is not None and total.error < 0.15
    assert [figure.what for figure in others] == ["incident 1, next step"], "its lost work is not known"


# What is shown is what is written.

SHOWN = {
    "step": "step_ns",
    "cold start": "startup_ns",
    "warm start": "warm_startup_ns",
    "restore": "restore_ns",
    "warm-up": "warmup_ns",
    "finish": "finish_ns",
    "stop": "stop_ns",
    "imports of a node": "import_ns",
}


@pytest.mark.parametrize("step_s", [0.07, 0.221, 0.3, 0.7])
def test_the_figure_that_is_shown_is_the_one_that_is_written(step_s: float):
    """Reports of steps of 221 ms are 500 ms apart, with now two of them, now three: their median is 250 ms."""
    talk = trainers()
    at = work(talk, 19.3, 1, 100, step_s, save_every=20, save_s=0.4)
    fail(talk, at + 1)
    at = work(talk, at + 3, 101, 200, step_s, save_every=20, save_s=0.4)
    fail(talk, at + 1)
    at = work(talk, at + 4.3, 201, 300, step_s, save_every=20, save_s=0.4)
    finish(talk, at + 0.3, "trainer/0")
    found = measured(talk)
    assert found.fields["step_ns"] == pytest.approx(step_s * SECOND, rel=0.02)
    shown = {SHOWN[name]: one.used_ns for name, one in found.measured.items() if name in SHOWN}
    assert {"step_ns", "startup_ns", "warm_startup_ns", "finish_ns"} <= shown.keys()
    assert {name: rounded(ns) for name, ns in shown.items()} == {name: found.fields[name] for name in shown}
    assert found.measured["save, blocking"].used_ns == pytest.approx(found.fields["checkpoint_ns"], rel=0.001)
    low, high = found.measured["step"].least_ns, found.measured["step"].most_ns
    assert 0.9 * step_s * SECOND <= low <= high <= 1.1 * step_s * SECOND, "no range of half steps"


def test_of_several_sizes_each_has_its_row_or_none_has():
    def of_size(count: int, step_s: float) -> Talk:
        talk = trainers(count)
        work(talk, 3, 1, 50, step_s)
        return talk

    apart = measured(of_size(1, 0.2), of_size(2, 0.1))
    rows = {name: rounded(one.used_ns) for name, one in apart.measured.items() if name.startswith("step")}
    assert rows == {f"step, {size} workers": ns for size, ns in apart.fields["step_times"]}
    alike = measured(of_size(1, 0.101), of_size(2, 0.1))
    assert [name for name in alike.measured if name.startswith("step")] == ["step"]


def test_workers_that_are_stopped_before_they_run_do_not_show_how_long_a_stop_takes():
    """One waits for the imports of its node when its peer is lost, and is dropped at once."""
    t = Topology("stops", nodes=3 * [Node(cpu=1)])
    load = Workload(steps=60, startup="1s", import_time="16s", stop_time="2s")
    restart_ = Restart("role", max_restarts=3, backoff="0s")
    t.role("trainer", "true", replicas=2, restart=restart_, workload=load)
    dropped, stopped = (simulate(t, fault) for fault in ("node1@6s", "node1@30s"))
    found = []
    for result in (dropped, stopped):
        header, *lines = result.lines
        assert isinstance(header, Header)
        found.append(calibrate([observe(header, lines)]).roles["trainer"].fields.get("stop_ns"))
    assert found == [None, pytest.approx(2 * SECOND, rel=0.01)]
