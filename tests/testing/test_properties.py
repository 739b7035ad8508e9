"""Properties of a user's: always, eventually, sometimes; the built-in points; bounds; liveness after the last fault."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import Phase, find, settings

from flowdist import Node, Restart, Topology, Workload
from flowdist.control.job.state import JobState
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.faults.scenario import Expect
from flowdist.faults.streams import spread
from flowdist.graph import HOUR, MINUTE, SECOND, RoleGraph
from flowdist.record.journal import FaultLine
from flowdist.sim.checks.bounds import bounds_of
from flowdist.sim.checks.expectations import unmet
from flowdist.sim.checks.liveness import bound_ns, end_ns, healed_ns, late
from flowdist.sim.checks.points import POINTS, RESTORING, SAVING, SPARE, STALE, reachable
from flowdist.sim.simulation import Simulation
from flowdist.testing import always, assert_recovers, eventually, explore, graph_of, simulate, sometimes
from flowdist.testing.campaign import Rules, campaign, horizon, judge, try_seed
from flowdist.testing.declare import load_properties, side_file
from flowdist.testing.strategies import Schedule, fault_plans, schedules, topologies

ROOT = Path(__file__).parents[2]
GANG = str(ROOT / "scenarios/topologies/gang.py")


def gang(nodes: int = 4, restore: str = "0s", checkpoint: str = "1s") -> RoleGraph:
    t = Topology("small", nodes=nodes * [Node(cpu=1)])
    load = Workload(steps=120, checkpoint_every="30s", checkpoint_time=checkpoint, restore_time=restore)
    t.role("trainer", "true", replicas="1:3", restart=Restart(max_restarts=3), workload=load)
    return graph_of(t)


def three_up(job: JobState) -> bool:
    return job.ending is not None or job.worlds["trainer"].up == 3


def test_eventually_allows_what_comes_back_in_time_and_names_since_when_it_waits() -> None:
    graph = gang(nodes=3)
    assert simulate(graph, "node1@20s/10s", eventually=[eventually(three_up, within="1m")]).violation is None
    result = simulate(graph, "node1@20s/30s", eventually=[eventually(three_up, within="20s")])
    assert result.violation is not None and result.violation.property == "eventually"
    assert "three_up has not held since 20.01s, for more than 20s" in str(result.violation)
    assert "waiting for" in str(result.violation)
    assert result.now < 2 * MINUTE  # it stopped there


def test_eventually_has_to_hold_at_the_end_but_not_where_the_clock_was_stopped() -> None:
    never = eventually(lambda job: False, within="1h")
    ended = simulate(gang(), eventually=[never])
    assert "and the job has succeeded" in str(ended.violation)
    assert simulate(gang(), until="1m", eventually=[never]).violation is None
    assert "has not held since 0s" in str(
        simulate(gang(), until="1m", eventually=[never._replace(within_ns=1)]).violation
    )


def test_a_state_that_came_back_late_is_a_violation_without_events_in_between() -> None:
    """Between two events nobody asks: at the next one it counts how long it was away."""
    started = eventually(lambda job: job.worlds["trainer"].formed_ns is not None, within="1us")
    assert "for more than" in str(simulate(gang(), eventually=[started]).violation)


def test_assertions_in_a_property_are_its_words_and_other_exceptions_its_mistakes() -> None:
    @always
    def few(job: JobState) -> None:
        assert job.worlds["trainer"].up < 3, "three of them"

    assert "few at" in str(simulate(gang(), always=[few]).violation)
    assert "three of them" in str(simulate(gang(), always=[few]).violation)
    with pytest.raises(FlowdistError, match=r"property wrong \(.*test_properties.py:\d+\) raises KeyError: 'nobody'"):

        def wrong(job: JobState) -> object:
            return job.worlds["nobody"]

        simulate(gang(), always=[wrong])


def test_points_are_seen_in_a_run_and_demanded_of_it() -> None:
    point = sometimes("fewer", lambda job: job.worlds["trainer"].up == 2)
    result = simulate(gang(nodes=3), "node1@20s", sometimes=[point])
    assert 20 * SECOND <= result.seen["fewer"] <= 30 * SECOND
    assert_recovers(gang(nodes=3), "node1@20s", sometimes={"fewer": point.check})
    with pytest.raises(AssertionError, match="never seen: nine of them"):
        assert_recovers(gang(nodes=3), sometimes={"nine of them": lambda job: job.worlds["trainer"].up == 9})


@pytest.mark.parametrize(
    ("faults", "seen", "other"),
    [
        (("trainer/0@3s",), "failure while starting", "failure during re-formation"),
        (("trainer/0@36s",), "failure during a checkpoint", "failure while starting"),
        (("trainer/0@50s", "trainer/1@57s"), "failure during restore", "controller loss in recovery"),
        (("trainer/0@50s", "trainer/1@52s"), "failure during re-formation", "failure during restore"),
        (("trainer/0@50s", "trainer/1@52s"), "double fault inside a recovery", "failure during a checkpoint"),
        (("trainer/0@50s", "controller@52s"), "controller loss in recovery", "double fault inside a recovery"),
        (("node1@50s",), "last spare used", "double fault inside a recovery"),
    ],
)
def test_built_in_points_are_where_faults_hit(faults: tuple[str, ...], seen: str, other: str) -> None:
    result = simulate(gang(restore="4s", checkpoint="4s"), *faults)
    assert seen in result.seen and other not in result.seen
    assert not unmet(Expect(seen=[seen]), result)
    assert unmet(Expect(seen=[other]), result) == [f"seen: {other!r} was never reached"]


def test_what_only_disturbs_is_no_failure_and_a_quiet_run_sees_nothing() -> None:
    assert not simulate(gang(), "node1@36s:delay=100ms/5s").seen
    assert not simulate(gang()).seen


def test_points_that_a_topology_cannot_reach_are_not_asked_for() -> None:
    assert set(reachable(gang(), has_spare=False)) == set(POINTS) - {RESTORING, SPARE, STALE}
    assert set(reachable(gang(restore="1s", checkpoint="0s"), has_spare=True)) == set(POINTS) - {SAVING, STALE}


def test_phases_of_saving_and_restoring_are_counted() -> None:
    result = simulate(gang(restore="4s", checkpoint="4s"), "trainer/0@50s", "trainer/0@57s", "trainer/0@98s")
    assert result.hits == {("kill", "steady"): 1, ("kill", "restoring"): 1, ("kill", "saving"): 1}


def test_a_campaign_that_never_saw_a_point_is_red() -> None:
    fewer = sometimes("fewer", lambda job: 0 < job.worlds["trainer"].up < 3)
    assert explore(gang(), seeds=15, sometimes=[fewer]).points["fewer"] > 0
    with pytest.raises(AssertionError, match="never seen in 5 seeds: nine of them"):
        explore(gang(), seeds=5, sometimes={"nine of them": lambda job: job.worlds["trainer"].up == 9})


def test_a_campaign_of_any_number_of_processes_shrinks_a_broken_property() -> None:
    promise = eventually(three_up, within="15s")
    reports = [campaign(gang(), range(1, 25), jobs=n, properties=properties(promise)) for n in (1, 2)]
    assert reports[0] == reports[1]
    failure = next(failure for failure in reports[0].failures if failure.property == "eventually")
    assert failure.faults == ("node2@21.454s:drain", "node3@24.871s/53s")  # without either there is a spare node
    assert failure.waiting and failure.divergence
    assert any("!!" in line for line in failure.trace)


def properties(*promises: object):  # type: ignore[no-untyped-def]
    from flowdist.sim.checks.properties import properties_of

    return properties_of(eventually=promises)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "which"),
    [
        (bounds_of(recovers_within="2s"), "recovers within"),
        (bounds_of(lost_work="10s"), "lost work"),
        (bounds_of(goodput=0.9), "goodput"),
    ],
)
def test_bounds_of_a_campaign_are_shrunk_like_any_property(bounds: object, which: str) -> None:
    report = campaign(gang(nodes=3), range(1, 40), fail_fast=True, bounds=bounds)  # type: ignore[arg-type]
    [failure] = report.failures
    assert failure.property == which and len(failure.faults) == 1


def test_a_bound_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(FlowdistError, match=r"goodput 90: a share"):
        bounds_of(goodput=90)
    with pytest.raises(FlowdistError, match="lost_work soon: no duration"):
        explore(gang(), seeds=1, lost_work="soon")


def test_the_bound_of_liveness_is_a_sum_that_the_topology_gives() -> None:
    graph = gang()
    # lease 4, margins 2, cause window 2; grace 30, back-off 60, start-up 6; cool-down 30, join window 10, once more 96;
    # a checkpoint every 31
    assert bound_ns(graph, Plan()) == (8 + 96 + 136 + 31) * SECOND
    with_controller = Plan((parse_fault("controller@5s"),))
    assert bound_ns(graph, with_controller) == (2 + 604 + 96 + 136 + 31) * SECOND
    assert end_ns(graph, Plan(), horizon(graph)) < 20 * MINUTE  # and not 50 times as long as it takes


def test_a_job_that_gets_on_too_late_is_told_although_it_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: who comes back from a failure is up only after a quarter of an hour."""
    healthy = judge(gang(), Plan((parse_fault("trainer/0@50s"),)), 1, Rules(horizon(gang())))
    assert healthy[1:] == ("", "")
    slow_restart(monkeypatch, 15 * MINUTE)
    result, property, text = judge(gang(), Plan((parse_fault("trainer/0@50s"),)), 1, Rules(horizon(gang())))
    assert property == "liveness" and "no step was committed within 4m31s after the last fault was over, at 50s" in text
    assert "trainer/0 to finish" in text and result.job.outcome is None


def slow_restart(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    startup_ns = gang().roles[0].workload.startup_ns

    def slow(seed: int, entity: str, purpose: str, share: float) -> float:
        drawn = spread(seed, entity, purpose, share)
        return drawn if entity.endswith("#1") else drawn + by_ns / startup_ns

    monkeypatch.setattr("flowdist.sim.workers.start_ups.spread", slow)


def test_a_campaign_finds_what_gets_on_too_late_and_its_command_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from flowdist.testing.campaign import replay_command

    horizon_ns = horizon(gang())
    slow_restart(monkeypatch, HOUR)
    verdicts = (try_seed(gang(), seed, Rules(horizon_ns)) for seed in range(1, 30))
    failure = next(verdict.failure for verdict in verdicts if verdict.failure is not None)
    assert failure.property == "liveness" and len(failure.faults) == 1
    assert replay_command("x.py", [], failure).endswith("--live")


def test_a_stretch_that_was_computed_is_progress() -> None:
    """Of nearly an hour of checkpoints only the last is played: the others have no line."""
    graph = graph_of(GANG)
    load = msgspec.structs.replace(graph.roles[0].workload, steps=3000)
    graph = msgspec.structs.replace(graph, roles=(msgspec.structs.replace(graph.roles[0], workload=load),))
    plan = Plan((parse_fault("trainer/0@10s"),))
    result = Simulation(graph, plan, fast_forward=True).run(2 * HOUR)
    assert healed_ns(result, plan) == 10 * SECOND and late(result, plan) is None
    for model in result.models.values():
        model.skipped.clear()
    assert late(result, plan) is not None


def written(tmp_path: Path, text: str, name: str = "props.py") -> Path:
    path = tmp_path / name
    path.write_text("from flowdist.testing import always, eventually, sometimes\n" + text)
    return path


def test_a_file_of_properties_is_found_beside_the_topology(tmp_path: Path) -> None:
    topology = tmp_path / "job.py"
    topology.write_text(Path(GANG).read_text())
    assert side_file(topology) is None and simulate(topology).violation is None
    path = written(tmp_path, "@always\ndef few(job):\n    return job.worlds['trainer'].up < 4\n", "job_properties.py")
    assert side_file(f"{topology}:t") == path
    assert "few does not hold" in str(simulate(str(topology)).violation)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 3\n", "props.py declares no property"),
        ("x = (\n", r"props.py:2: .*never closed"),
        ("\nraise ValueError('no')\n", "props.py:3: ValueError: no"),
        ("a = eventually(print, within='soon')\n", "props.py:2: within 'soon': no duration"),
        ("a = sometimes('x', print)\nb = sometimes('x', len)\n", "two properties are called 'x'"),
        ("a = sometimes('failure during restore', print)\n", "'failure during restore' is built in"),
    ],
)
def test_a_wrong_file_of_properties_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FlowdistError, match=message):
        load_properties(written(tmp_path, text))
    with pytest.raises(FlowdistError, match="no file of properties"):
        load_properties(tmp_path / "nowhere.py")


def flowdist(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowdist", *arguments], check=False, cwd=cwd, capture_output=True, text=True
    )


def test_from_the_command_line_a_property_is_found_replayed_and_kept(tmp_path: Path) -> None:
    text = "@eventually(within='20s')\ndef up(job):\n    return job.ending or job.worlds['trainer'].up == 4\n"
    text += "never = sometimes('five of them', lambda job: job.worlds['trainer'].up == 5)\n"
    path, corpus = written(tmp_path, text), tmp_path / "corpus.jsonl"
    asked = ("simulate", GANG, "--seeds", "2:5", "--corpus", str(corpus))
    done = flowdist(*asked, "--properties", str(path))
    assert done.returncode == 3 and "seed 2, and 3 alike (3, 4, 5): eventually" in done.stdout
    for words in (
        "shortest plan: ",
        "where it first differs from a run that passes: ",
        "waiting for ",
        "its trace around the cause (--full: more)",
        "five of",
    ):
        assert words in done.stdout
    assert "never seen: five of them" in done.stderr
    again = next(line for line in done.stdout.splitlines() if "again:" in line).partition("again: flowdist ")[2]
    shown = flowdist(*again.split())
    assert shown.returncode == 3 and "up has not held since" in shown.stderr
    held = flowdist(*asked)
    assert held.returncode == 0 and "failed before, and hold now: seeds 2" in held.stdout
    assert "keeps them" in held.stdout and '"seed": 2' in corpus.read_text()


@pytest.mark.slow
def test_a_point_that_no_run_reached_is_red_and_bounds_hold_for_single_runs(tmp_path: Path) -> None:
    path = written(tmp_path, "never = sometimes('five of them', lambda job: job.worlds['trainer'].up == 5)\n")
    done = flowdist("simulate", GANG, "--seeds", "1:3", "--properties", str(path))
    assert done.returncode == 3 and "3 of 3 seeds hold" in done.stdout
    run = ("simulate", GANG, "--fail", "trainer/0@2m55s")
    assert flowdist(*run, "--live").returncode == 0
    done = flowdist(*run, "--lost-work", "1s", "--recovers-within", "1s", "--goodput", "1")
    assert done.returncode == 3
    for which in ("lost work", "recovers within", "goodput"):
        assert f"expectation not met: {which}: " in done.stderr
    stuck = flowdist("simulate", GANG, "--until", "20s", "--live")
    assert stuck.returncode == 3 and "liveness: not done in time; waiting for trainer/0 to finish" in stuck.stderr


def test_a_scenario_demands_goodput_and_points(tmp_path: Path) -> None:
    story = tmp_path / "story.toml"
    head = f'title = "x"\ntopology = "{GANG}"\nfaults = ["trainer/0@2m30s"]\n[expect]\n'
    for expect, text in (
        ("goodput_min = 0.99", "goodput_min: goodput is 0."),
        ('seen = ["failure during restore"]', "seen: 'failure during restore' was never reached"),
        ('seen = ["failure during restor"]', "there is no point 'failure during restor'; did you mean"),
    ):
        story.write_text(head + expect)
        done = flowdist("simulate", str(story))
        assert done.returncode == 3 and text in done.stderr
    story.write_text(head + "goodput_min = 0.8\n")
    assert flowdist("simulate", str(story)).returncode == 0


QUICK = settings(
    max_examples=2000, deadline=None, database=None, phases=[Phase.generate, Phase.shrink], derandomize=True
)


def test_a_planted_failure_shrinks_to_one_fault() -> None:
    """The trainers may not be restarted: any one failure of theirs ends the job."""
    graph = graph_of(GANG, {"max_restarts": 0})
    plan = find(fault_plans(graph), lambda plan: simulate(graph, plan).job.outcome == "failed", settings=QUICK)
    assert [len(part) for part in plan] == [1, 0, 0, 0, 0] and plan.faults[0].spec == "trainer@1s"


def test_a_schedule_shrinks_to_one_order_of_the_nominal_run() -> None:
    graph = graph_of(GANG)

    def shrinks_the_world(schedule: Schedule) -> bool:
        result = simulate(graph, **schedule._asdict())
        return any(incident.kind != "joined" for incident in result.job.incidents)

    schedule = find(schedules(graph), shrinks_the_world, settings=QUICK)
    assert (schedule.seed, schedule.schedule) == (0, 0)
    assert sum(map(len, (schedule.scale, schedule.add, schedule.drain))) == 1
    assert simulate(GANG, **schedule._asdict()).lines == simulate(GANG, **schedule._asdict()).lines


@pytest.mark.slow
def test_topologies_shrink_to_the_smallest_that_still_fails() -> None:
    graph = find(topologies(), lambda graph: any(spec.gang for spec in graph.roles), settings=QUICK)
    assert len(graph.roles) <= 2 and all(spec.max_replicas == 1 for spec in graph.roles)


def test_a_fault_left_out_leaves_the_order_of_all_else_as_it_was() -> None:
    """What makes shrinking work: up to the fault the two runs are the same, whatever the schedule."""
    for schedule in (1, 2, 3):
        with_it, without = (simulate(GANG, *faults, schedule=schedule).lines for faults in (["node1@2m"], []))
        before = [line for line in with_it[1:] if line.t_ns < 2 * MINUTE]  # type: ignore[union-attr]
        assert before == without[1 : 1 + len(before)]


@pytest.mark.slow
def test_the_examples_of_the_page_are_complete(tmp_path: Path) -> None:
    """Every file that docs/testing.md shows is written as it stands there, and what the workflow runs, runs."""
    page = (ROOT / "docs/testing.md").read_text()
    files = re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", page, re.S | re.M)
    names = [name for name, _ in files]
    assert names == [
        "topology.py",
        "test_topology.py",
        "topology_properties.py",
        "test_any_plan.py",
        ".github/workflows/fault-tolerance.yml",
    ]
    assert page.count("```python") + page.count("```yaml") == len(files)
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for script in ("train.py", "evaluate.py"):
        (tmp_path / script).write_text("")
    commands = re.findall(r"^      - run: (.*)$", files[-1][1], re.M)
    assert [command.split()[0] for command in commands] == ["pip", "flowdist", "pytest", "flowdist"]
    for command in commands[1:]:
        words = [sys.executable, "-m", *command.split()]
        words += ["-p", "no:cacheprovider"] if "pytest" in words else []
        done = subprocess.run(words, check=False, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert (tmp_path / "report.xml").is_file()


@pytest.mark.slow
def test_the_fixture_takes_properties_and_its_line_the_file_of_them(tmp_path: Path) -> None:
    props = written(tmp_path, "@always\ndef few(job):\n    return job.worlds['trainer'].up < 4\n")
    (tmp_path / "test_mine.py").write_text(
        "from flowdist.testing import eventually\n"
        f"GANG = {GANG!r}\n"
        "def test_file(simulate):\n"
        f"    assert simulate(GANG, properties={str(props)!r}, schedule=3).violation is None\n"
        "def test_own(simulate):\n"
        "    never = eventually(lambda job: False, within='1s')\n"
        "    assert simulate(GANG, scale=['trainer=3@1m'], eventually=[never]).violation is None\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml", "out.xml"]
    done = subprocess.run(
        [*command, "-p", "flowdist.testing.plugin"], check=False, cwd=tmp_path, capture_output=True, text=True
    )
    if "already registered" in done.stderr:  # it is installed with its entry point
        done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert "2 failed" in done.stdout, done.stdout + done.stderr
    line = f"flowdist simulate {GANG} --properties {props} --seed 0 --schedule 3"
    own = f"flowdist simulate {GANG} --scale trainer=3@1m --seed 0  # without what the test itself demands"
    for written_to in (done.stdout, (tmp_path / "out.xml").read_text()):
        assert line in written_to and own in written_to
    assert flowdist(*line.split()[1:]).returncode == 3


def test_a_plan_and_words_of_the_grammar_go_together() -> None:
    plan = Plan((parse_fault("trainer/1@1m"),))
    result = simulate(GANG, plan, "trainer/0@2m", scale=["trainer=3@3m"])
    hits = [line.spec for line in result.lines if isinstance(line, FaultLine)]
    assert hits == ["trainer/1@1m", "trainer/0@2m"] and len(result.job.worlds["trainer"].members) == 3


def test_what_the_page_says_of_the_state_is_there() -> None:
    page = (ROOT / "docs/reference/properties.md").read_text().partition("| of `job` | |")[2].partition("\n\n")[0]
    job = simulate(ROOT / "scenarios/topologies/gang.py", "node2@3m/2m").job
    parts = {
        'worlds["trainer"]': job.worlds["trainer"],
        'roles["trainer"]': job.roles["trainer"],
        "replicas.values()": next(iter(job.replicas.values())),
        'nodes["node1"]': job.nodes["node1"],
        "incidents": job.incidents[0],
    }
    rows = [row.strip("| ").split(" | ", 1) for row in page.splitlines() if row.startswith("| `")]
    assert len(rows) == len(parts) + 2
    for names, told in rows:
        for name in re.findall("`([^`]+)`", names):
            if name in parts:
                for field in re.findall(r"`([a-z_]+)`", told):
                    assert hasattr(parts[name], field), f"{name} has no {field}"
            else:
                assert hasattr(job, name), f"the state has no {name}"
