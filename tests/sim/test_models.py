"""User code in virtual time: the times of its calls, its files after a crash, and its exceptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from flowdist import Node, Restart, Topology, Workload, worker
from flowdist.cli.main import cli
from flowdist.control.protocol.ids import ReplicaId
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Plan, parse_fault
from flowdist.graph import SECOND, RoleGraph
from flowdist.record.journal import UnsavedLine
from flowdist.sim.checks.points import STALE
from flowdist.sim.simulation import SimResult, Simulation
from flowdist.sim.user_code.checkpoints import Disk, Operation, View
from flowdist.testing import assert_recovers, assert_same_result, check_determinism, explore, graph_of
from flowdist.testing.campaign import campaign
from tests.sim import user_models as models

R = ReplicaId("trainer", 0)
ROOT = Path(__file__).parents[2]


def job(model: object, replicas: str = "1:2", steps: int = 40, restarts: int = 3, **workload: object) -> RoleGraph:
    t = Topology("user-code", nodes=2 * [Node(cpu=1)])
    times = {"startup": "2s", "checkpoint_every": "10s", "checkpoint_time": "2s", **workload}
    load = Workload(steps=steps, **times)  # type: ignore[arg-type]
    policy = Restart("role", max_restarts=restarts)
    t.role("trainer", "true", replicas=replicas, cpu=1, simulate=model, restart=policy, workload=load)
    return graph_of(t)


def served(trainer: object, *, gang: bool = True, on_restart: str = "reconnect") -> RoleGraph:
    t = Topology("served", nodes=3 * [Node(cpu=2)])
    often = Restart("replica", max_restarts=3)
    load = Workload(startup="1s", checkpoint_every="6s", checkpoint_time="1s")
    ps = t.role(
        "ps", "true", kind="service", replicas=2, ports=["rpc"], simulate=models.Server, restart=often, workload=load
    )
    gate = ps.started(on_restart=on_restart)  # type: ignore[arg-type]
    load = Workload(steps=30, startup="2s", checkpoint_every="10s", checkpoint_time="1s")
    policy = Restart("role" if gang else "replica", max_restarts=3)
    t.role("trainer", "true", replicas=2, gang=gang, depends_on=gate, simulate=trainer, restart=policy, workload=load)
    return graph_of(t)


def run(graph: RoleGraph, *faults: str, seed: int = 0, play_steps: bool = False) -> SimResult:
    return Simulation(graph, Plan(tuple(map(parse_fault, faults))), seed=seed, play_steps=play_steps).run()


def files(simulation: Simulation) -> dict[str, bytes]:
    return {name: file.data for name, file in simulation.work.code.disk.of("trainer").items()}


# steps


def test_every_step_is_asked_for_once_and_in_order() -> None:
    simulation = Simulation(job(models.Counting))
    result = simulation.run()
    assert result.job.outcome == "succeeded" and list(result.played.steps["trainer"]) == list(range(40))
    assert result.played.calls == 40
    assert result.played.ends == {"trainer": {"total": sum(range(160))}}


def test_after_a_failure_it_goes_on_from_its_checkpoint_and_later_steps_are_lost() -> None:
    result = run(job(models.Counting), "trainer/1@step=trainer,25")
    assert [(resumed.generation, resumed.step) for resumed in result.played.resumed["trainer"]] == [(1, 0), (2, 20)]
    assert result.played.calls == 45
    assert result.played.steps["trainer"][19].generation == 1 and result.played.steps["trainer"][20].generation == 2
    assert result.played.ends == {"trainer": {"total": sum(range(160))}}


PLANS = [
    (),
    ("trainer/1@13s",),
    ("trainer/1@step=trainer,17", "node1@30s:pause/20s"),
    ("node1@15s:lost/20s", "controller@18s"),
    ("trainer/0@12s:slow=3x/9s", "trainer@20s:slow-checkpoint=5x/1m", "trainer/0@38s"),
    ("node0@25s:preempt=8s/30s",),
]


@pytest.mark.parametrize("faults", PLANS, ids=str)
@pytest.mark.parametrize(
    "graph",
    [
        job(models.Counting),
        job(models.CommitsInStep),
        job(models.Raising),
        served(models.Telling),
        served(models.Telling, gang=False),
        served(models.Provoking, gang=False, on_restart="restart"),
    ],
    ids=["counting", "commits in a step", "raising", "served", "loose", "provoking"],
)
def test_steps_that_are_played_at_once_decide_the_same_as_steps_one_by_one(
    graph: RoleGraph, faults: tuple[str, ...]
) -> None:
    for seed in (0, 3):
        bulk, single = run(graph, *faults, seed=seed), run(graph, *faults, seed=seed, play_steps=True)
        assert bulk.digest == single.digest and bulk.spent == single.spent
        assert bulk.played == single.played


def test_most_steps_are_played_without_an_event_of_their_own() -> None:
    graph = job(models.Counting, steps=400, checkpoint_every="100s")
    assert run(graph, play_steps=True).handled - run(graph).handled > 350


# checkpoints


def test_what_was_being_written_when_its_writer_died_is_torn() -> None:
    found = set()
    for tenths in range(26):
        simulation = Simulation(job(models.Writing), Plan((parse_fault(f"trainer/1@{12 + tenths / 10:g}s"),)))
        simulation.run(15 * 10**9)
        found.add(tuple((name, len(data)) for name, data in sorted(files(simulation).items()) if name.endswith("1")))
    lengths = {name: {size for state in found for known, size in state if known == name} for name in ("a1", "b1", "d1")}
    assert lengths["b1"] == {100}  # a rename is whole or has not happened
    assert any(0 < size < 100 for size in lengths["a1"]) and any(0 < size < 200 for size in lengths["d1"])
    assert () in found


def test_a_commit_of_a_generation_that_is_over_is_refused() -> None:
    """The node of rank 0 is paused while it publishes, until a new generation has saved as well."""
    graph = job(models.Counting, steps=60)
    offers = []
    for hundredths in range(1200, 1250, 5):
        faults = Plan((parse_fault(f"node0@{hundredths / 100:g}s:pause/25s"),))
        result = Simulation(graph, faults).run()
        assert result.violation is None and result.played.ends == {"trainer": {"total": sum(range(240))}}
        if STALE in result.seen:
            offers.append(result.seen[STALE])
            simulation = Simulation(graph, faults)
            simulation.run(result.seen[STALE] + SECOND)
            latest = simulation.job.worlds["trainer"].checkpoint
            assert latest is not None and latest.generation == 2 and latest.path == "trainer/10-2"
            assert simulation.work.code.latest == {"trainer": "10-2"}
    assert len(offers) > 2 and all(at > 37 * SECOND for at in offers)


def test_a_commit_that_is_overtaken_by_the_end_of_its_generation_is_refused() -> None:
    """Rank 0 is killed as soon as it has offered; it restarts before the offer arrives."""
    graph = job(models.Counting, steps=60)
    seen = set()
    for seed in range(12):
        result = run(graph, "node0@11s:reorder=1/3s", "trainer/0@12.4075s", seed=seed)
        assert result.violation is None and result.played.ends == {"trainer": {"total": sum(range(240))}}
        seen |= set(result.seen)
    assert STALE in seen


def test_a_rank_that_reads_another_checkpoint_than_the_rest_is_named() -> None:
    class_of = models.Counting

    def restore(self: models.Counting) -> int:
        return self.ctx.info.rank

    original, class_of.restore = class_of.restore, restore  # type: ignore[method-assign]
    try:
        result = run(job(models.Counting))
    finally:
        class_of.restore = original  # type: ignore[method-assign]
    assert result.violation is not None and result.violation.property == "same start"
    assert "rank 0 from 0, rank 1 from 1" in str(result.violation)


def test_a_stop_at_a_step_saves_at_that_step() -> None:
    result = run(job(models.Counting, steps=60), "node1@25s:preempt=20s")
    assert [resumed.step for resumed in result.played.resumed["trainer"]] == [0, 21]
    assert result.job.outcome == "succeeded" and result.models["trainer"].lost_steps == 0
    assert result.played.calls == 60


def test_what_is_being_saved_when_the_ranks_have_to_stop_is_saved_first() -> None:
    """Otherwise the end of its writer would tear the file that was written at the stop."""
    graph = job(models.Writing, steps=60, checkpoint_time="6s")
    faults = ("node1@11.3s:preempt=20s", "trainer/1@12.2s:pause/2.6s")  # they stop at step 10; one writes for longer
    simulation = Simulation(graph, Plan(tuple(map(parse_fault, faults))))
    simulation.run(25 * 10**9)
    assert set(files(simulation)) == {"b0", "d0", "b1", "d1", "10-1"}  # and no a1 that is torn
    assert files(simulation)["d1"] == b"10" * 100 and files(simulation)["b1"] == b"a" * 100


def test_who_gets_slower_on_the_way_stops_at_the_step_that_was_named_all_the_same() -> None:
    result = run(job(models.Counting, steps=60), "node1@18.5s:preempt=40s", "trainer/0@18.6s:slow=10x/20s")
    assert [resumed.step for resumed in result.played.resumed["trainer"]] == [0, 15]
    assert result.models["trainer"].lost_steps == 0


@pytest.mark.parametrize("kind", ["torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint"])
def test_what_becomes_of_a_file_that_was_whole_is_seen_by_who_reads_it(kind: str) -> None:
    """A model that does not look fails at each start, until the budget is used up."""
    result = run(job(models.Counting), f"trainer@20s:{kind}", "trainer/1@21s")
    if kind == "corrupt-checkpoint":
        assert result.played.ends != run(job(models.Counting)).played.ends
    else:
        assert result.job.outcome == "failed" and len(result.played.errors) >= 3
        raised = {"torn-checkpoint": "JSONDecodeError", "lost-checkpoint": "FileNotFoundError"}[kind]
        assert raised in result.played.errors[0].line


@pytest.mark.parametrize("kind", ["torn-checkpoint", "lost-checkpoint", "corrupt-checkpoint"])
def test_without_a_model_it_costs_the_work_since_the_one_before(kind: str) -> None:
    whole = run(job(None), "trainer@35s").models["trainer"].lost_steps
    assert run(job(None), f"trainer@34s:{kind}", "trainer@35s").models["trainer"].lost_steps == whole + 10


@pytest.mark.parametrize("model", [None, models.Counting])
def test_a_slow_disk_makes_checkpoints_longer_while_it_is_slow(model: object) -> None:
    quick = run(job(model))
    assert run(job(model), "trainer@5s:slow-checkpoint=4x").now - quick.now == 3 * 3 * 2 * 10**9
    assert run(job(model), "trainer@5s:slow-checkpoint=4x/15s").now - quick.now == 3 * 2 * 10**9


def test_a_full_disk_is_an_error_of_the_write() -> None:
    result = run(job(models.Counting, steps=20), "trainer@1s:disk-full/20s")
    assert result.played.errors[0].line == "OSError: [Errno 28] No space left on device: '10-1'"
    assert result.job.outcome == "succeeded"


def test_user_code_that_goes_on_with_a_full_disk_records_what_it_could_not_save() -> None:
    for model, offered in ((models.Counting, 1), (models.Enduring, 2)):
        result = run(job(model, steps=30), "trainer@1s:disk-full/20s")
        lines = [line for line in result.lines if isinstance(line, UnsavedLine)]
        told = [(line.world, line.step, line.reason) for line in lines]
        assert told == [("trainer", 10, "the disk of trainer is full")]
        assert len(result.played.errors) == 2 - offered and result.job.outcome == "succeeded"


def test_a_store_is_read_as_its_writer_left_it() -> None:
    disk = Disk()
    view = View(disk, R)
    view.begin_record(3)
    view.write("a", b"12")
    assert view.read("a") == b"12" and view.names() == ["a"] and disk.of("trainer") == {}
    with pytest.raises(FileNotFoundError):
        view.read("b")
    view.rename("a", "b")
    view.remove("c")
    assert view.names() == ["b"]
    assert [(each.kind, each.name, each.to) for each in view.end_record()] == [
        ("write", "a", ""),
        ("rename", "a", "b"),
        ("remove", "c", ""),
    ]
    for name in ("", "a/b", ".."):
        with pytest.raises(ValueError, match="no plain file name"):
            view.write(name, b"")
    view.write("whole", b"123456")
    disk.begin(R, Operation("write", "whole", 4, b"7"))
    assert view.read("whole") == b""
    disk.finish(R, Operation("rename", "gone", 4, to="whole"))  # somebody else took it away
    assert view.read("whole") == b""
    disk.damage("trainer", "whole", "corrupt-checkpoint")
    assert view.read("whole") == b""


# exceptions


def test_an_exception_is_an_exit_with_its_traceback_kept() -> None:
    result = run(job(models.Raising))
    error = result.played.errors[0]
    assert (str(error.replica), error.attempt, error.line) == ("trainer/1", 1, "ValueError: the fifth step")
    assert "user_models.py" in error.text and "model_worker.py" not in error.text
    assert error.at_ns == run(job(models.Raising), play_steps=True).played.errors[0].at_ns
    assert [incident.kind for incident in result.job.incidents] == ["exit"]
    assert "exit code 1: ValueError: the fifth step" in result.job.incidents[0].reason
    assert result.job.outcome == "succeeded" and result.played.ends == {"trainer": {"total": sum(range(160))}}


def test_an_exit_has_the_code_that_user_code_gave_it() -> None:
    result = run(job(models.RaisingOnRestore), "trainer/1@15s")
    assert "exit code 7" in result.job.incidents[1].reason and result.job.outcome == "succeeded"


def test_an_exception_while_it_saves_leaves_no_checkpoint() -> None:
    result = run(job(models.RaisingOnSave))
    assert [resumed.step for resumed in result.played.resumed["trainer"]] == [0, 0]
    assert result.played.errors[0].line == "RuntimeError: no room"


def test_what_never_works_uses_up_its_budget_and_says_why() -> None:
    with pytest.raises(AssertionError, match=r"user code raised in trainer/0 .*RuntimeError: never works"):
        assert_recovers(job(models.AlwaysRaising))
    report = campaign(job(models.AlwaysRaising), [1])
    assert report.failures[0].faults == () and "without any fault" in report.failures[0].text


def test_no_failure_recovers_with_a_step_that_raises() -> None:
    result = run(job(models.AlwaysRaising))
    incidents = result.job.incidents
    assert len(incidents) == 4 and result.job.outcome == "failed"
    assert [incident.stepped_ns for incident in incidents] == 4 * [None]
    assert "recovered" not in {incident.result for incident in incidents}


def test_the_first_exception_is_named_before_what_it_led_to() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_same_result(job(models.RaisingTwoThings), "trainer/1@25m")
    lines = str(caught.value).splitlines()
    assert (
        lines[0].startswith("user code raised in trainer/0 after ") and "ValueError: the first, at user_m" in lines[0]
    )
    assert lines[1].startswith("the job has failed: ") and "RuntimeError: a later one" in lines[1]
    assert lines[2].startswith("fault trainer/1@25m never fired: ")
    failure = campaign(job(models.RaisingTwoThings), [1]).failures[0]
    assert "user code raised in trainer/0 after " in failure.text and "ValueError: the first" in failure.text


def test_an_exception_may_be_a_failure_by_itself() -> None:
    assert campaign(job(models.RaisingOnSave, restarts=5), [1]).failures == []
    failure = campaign(job(models.RaisingOnSave, restarts=5), [1], strict=True).failures[0]
    assert failure.property == "no exceptions" and "RuntimeError: no room" in failure.text


def brought(tmp_path: Path, source: str) -> RoleGraph:
    """Write a topology into a folder with this `model.py`."""
    (tmp_path / "model.py").write_text(source)
    graph = job(None)
    role = msgspec.structs.replace(graph.roles[0], simulate="model:Worker")
    return msgspec.structs.replace(graph, roles=(role,), source=str(tmp_path / "topology.py"))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n\nraise OSError('not here')", r"cannot be imported: OSError\('not here'\) \(.*model.py:3\)"),
        ("class Other: pass", "has no attribute 'Worker'"),
        ("def Worker(ctx): pass\nWorker.restore = Worker.step = print", "is no class"),
        ("class Worker:\n restore = print", r"has no method step\(\)"),
    ],
)
def test_a_model_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path, source: str, words: str) -> None:
    with pytest.raises(FlowdistError, match=words):
        Simulation(brought(tmp_path, source))


def test_models_of_one_name_in_two_folders_are_two_models(tmp_path: Path) -> None:
    source = "import neighbour\nclass Worker:\n def __init__(self, ctx): pass\n def restore(self): return 0\n"
    source += " def step(self, step): pass\n def state(self): return {'here': neighbour.HERE}\n"
    ends = []
    for name in ("one", "two", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "neighbour.py").write_text(f"HERE = {name!r}")
        ends.append(run(brought(tmp_path / name, source)).played.ends["trainer"]["here"])
    assert ends == ["one", "two", "one"]


def test_a_class_of_the_topology_file_is_a_model_too(tmp_path: Path) -> None:
    graph = brought(tmp_path, "")
    (tmp_path / "topology.py").write_text(Path(models.__file__).read_text())
    role = msgspec.structs.replace(graph.roles[0], simulate=f"{tmp_path / 'topology.py'}:Counting")
    assert run(msgspec.structs.replace(graph, roles=(role,))).played.calls == 40


# services


@pytest.mark.parametrize(
    ("model", "role", "port"),
    [
        (models.AskingForNoPort, "ps", "rcp"),
        (models.AskingForNoRole, "sp", "rpc"),
        (models.AskingForItself, "trainer", "rpc"),
    ],
)
def test_peers_raises_what_it_raises_in_a_real_run(
    model: type, role: str, port: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peers.json").write_text('{"ps:rpc": ["h:1", "h:2"]}')
    monkeypatch.setenv("FLOWDIST_PEERS", str(tmp_path / "peers.json"))
    with pytest.raises(RuntimeError) as real:
        worker.peers(role, port)
    result = run(served(model))
    error = result.played.errors[0]
    assert result.job.outcome == "failed" and error.line == f"RuntimeError: {real.value}"
    line = inspect.getsourcelines(model)[1] + 4  # of the call, below the docstring
    assert error.place == f"user_models.py:{line} in step()"


def test_pushes_reach_the_servers_as_they_were_and_nobody_shares_a_list() -> None:
    result = run(served(models.Telling))
    told = {"trainer/0": list(range(30)), "trainer/1": list(range(30))}
    assert result.played.ends == {"trainer": {}, "ps/0": {"told": told}, "ps/1": {"told": told}}
    assert {step.logged["values"] for step in result.played.steps["trainer"].values()} == {0}


def test_while_a_server_is_away_nobody_steps_and_it_goes_on_from_its_own_checkpoint() -> None:
    graph = served(models.Telling)
    quick, away = run(graph), run(graph, "ps/1@20s")
    assert away.job.outcome == "succeeded" and away.now > quick.now
    assert away.played.resumed["trainer"] == quick.played.resumed["trainer"]  # it has waited
    told = away.played.ends["ps/1"]["told"]["trainer/0"]  # type: ignore[index]
    missing = sorted(set(range(30)) - set(told))
    assert 0 < len(missing) < 8 and missing == list(range(missing[0], missing[-1] + 1))
    with pytest.raises(AssertionError, match="same result: ps/1: at the end told is"):
        assert_same_result(graph, "ps/1@20s")


def test_a_server_that_was_replaced_while_its_node_stood_still_keeps_nobody_waiting() -> None:
    assert run(served(models.Telling), "node0@8s:pause/20s").job.outcome == "succeeded"


def test_a_step_that_was_cut_short_has_pushed_if_it_was_more_than_half_done() -> None:
    """Pushes carry their step, so a repeated one is recognized; the server here has lost none."""

    def pushes(at: str) -> int:
        simulation = Simulation(served(models.Telling), Plan((parse_fault(f"trainer/0@{at}"),)))
        simulation.run(int(float(at[:-1]) * 10**9) + 10**6)
        serving = next(iter(simulation.work.code._serving.values()))
        return len(serving.worker.model.told["trainer/0"])

    assert pushes("7.4s") == pushes("7.1s") and pushes("7.8s") == pushes("7.4s") + 1


def test_an_exception_of_a_server_is_its_exit_and_its_callers() -> None:
    result = run(served(models.Provoking))
    lines = {str(error.replica): error.line for error in result.played.errors}
    assert lines["ps/0"] == "KeyError: 'nothing'"
    assert lines["trainer/0"] == "ConnectionError: ps/0:rpc failed in fail(): KeyError: 'nothing'"
    assert result.job.outcome == "succeeded"


def test_a_server_that_is_not_there_cannot_be_called() -> None:
    result = run(served(models.Calling))
    assert result.job.outcome == "failed" and result.played.errors[0].line == "ConnectionError: ps/9:rpc is not there"


# what must be the same


def test_random_numbers_are_those_of_the_seed_the_rank_and_the_purpose() -> None:
    graph = job(models.Drawing)
    again, other = run(graph, "trainer/1@25s", seed=3), run(graph, seed=4)
    truth = run(graph, seed=3)
    assert [step.logged for step in again.played.steps["trainer"].values()] == [
        step.logged for step in truth.played.steps["trainer"].values()
    ]
    first = truth.played.steps["trainer"][0].logged
    assert first["mine"] != first["ours"] != other.played.steps["trainer"][0].logged["ours"]
    assert truth.played.ends["trainer"]["rank 0"] != truth.played.ends["trainer"]["rank 1"]


def test_user_code_that_reads_a_clock_is_found_out() -> None:
    check_determinism(job(models.Counting), "trainer/1@15s")
    with pytest.raises(AssertionError, match=r"step 0 has .* and when it runs again has .*reads a clock"):
        check_determinism(job(models.Clocked))
    with pytest.raises(AssertionError, match="determinism: trainer: step 0"):
        explore(job(models.Clocked), seeds=2)


@pytest.mark.parametrize("model", [models.Clocked, models.ClockedOnRestore])
def test_another_result_is_explained_by_a_model_that_does_not_do_the_same_twice(model: type) -> None:
    with pytest.raises(AssertionError, match=r"^determinism: trainer: step .* reads a clock.*check_determinism\(\)"):
        assert_same_result(job(model), "trainer/1@step=trainer,25")


def test_the_command_line_explains_another_result_by_a_model_that_does_not_do_the_same_twice() -> None:
    model = ["-p", "model=tests.sim.user_models:Clocked"]
    topology = ROOT / "examples/resume_model/topology.py"
    done = CliRunner().invoke(cli, ["simulate", str(topology), *model, "--fail", "trainer/1@25s"])
    assert done.exit_code == 3 and "violated: determinism: trainer: step 0 has" in done.stderr
    assert "reads a clock" in done.stderr


def test_the_command_line_says_where_user_code_raised() -> None:
    topology = ROOT / "examples/resume_model/topology.py"
    done = CliRunner().invoke(cli, ["simulate", str(topology), "-p", "model=tests.sim.user_models:AlwaysRaising"])
    place = f"at user_models.py:{inspect.getsourcelines(models.AlwaysRaising.step)[1] + 1} in step()"
    first = next(line for line in done.stderr.splitlines() if line.startswith("user code raised first in trainer/0"))
    assert done.exit_code == 1 and first.endswith(f", {place}:")
    failed = next(line for line in done.stdout.splitlines() if line.startswith("FAILED"))
    assert place in failed and done.stdout.count(place) > 2  # in each incident, too


def test_ranks_that_end_with_different_states_are_found_out() -> None:
    with pytest.raises(AssertionError, match="total of trainer is not the same on all ranks: rank 1 has"):
        assert_same_result(job(models.Disagreeing))


def test_the_same_result_is_demanded_of_models_alone() -> None:
    assert assert_same_result(job(models.Counting), "trainer/1@step=trainer,25").played.calls == 45
    with pytest.raises(AssertionError, match="no role has a model"):
        assert_same_result(job(None))


def test_the_class_of_the_page_is_complete_and_right(tmp_path: Path) -> None:
    [text] = re.findall(r"^```python\n# model.py\n(.*?)^```$", (ROOT / "docs/models.md").read_text(), re.S | re.M)
    (tmp_path / "model.py").write_text(text)
    load = 'Workload(steps=40, startup="2s", checkpoint_every="10s", checkpoint_time="2s")'
    (tmp_path / "topology.py").write_text(
        'from flowdist import Restart, Topology, Workload\nt = Topology("page", nodes=3)\n'
        't.role("trainer", "true", replicas="2:3", simulate="model:Worker", '
        f'restart=Restart("role", max_restarts=5), workload={load})\n'
    )
    assert explore(tmp_path / "topology.py", seeds=30).recoveries > 20


# methods that are never called


@pytest.mark.parametrize("test", [assert_recovers, check_determinism, lambda graph: explore(graph, seeds=1)])
def test_a_misspelt_method_gives_a_python_warning_at_its_line(test: Callable[[RoleGraph], object]) -> None:
    with pytest.warns(UserWarning, match=r"^Misspelt.publsh: did you mean publish\?") as found:
        test(job(models.Misspelt))
    line = inspect.getsourcelines(models.Misspelt.publsh)[1]
    assert {(Path(each.filename).name, each.lineno) for each in found} == {("user_models.py", line)}
