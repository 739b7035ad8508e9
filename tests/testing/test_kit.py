"""The test kit as a user's tests see it: simulate, demand, explore, and the pytest plugin."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from flowdist import Node, On, Restart, Topology, Workload
from flowdist.control.controller import Controller
from flowdist.control.job.state import JobState
from flowdist.control.protocol.effects import Effect
from flowdist.control.protocol.events import Event, NodeGone
from flowdist.control.protocol.ids import ReplicaId
from flowdist.errors import FlowdistError
from flowdist.faults.grammar import Fault, FaultError
from flowdist.graph import SECOND, Cluster, NodeSpec
from flowdist.record.accounts import Accounts
from flowdist.sim.checks.bounds import bounds_of
from flowdist.sim.faults.nemesis import Nemesis, tolerance_of
from flowdist.testing import assert_recovers, explore, graph_of, simulate
from flowdist.testing.campaign import Failure, campaign, horizon, replay_command
from flowdist.testing.corpus import Corpus
from flowdist.testing.repro_command import replay_lines
from tests.choosing import examples
from tests.proofs.mutations import MUTANTS, mutated

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"
GANG = str(TOPOLOGIES / "gang.py")


def test_a_topology_object_is_simulated_as_a_file_is() -> None:
    t = Topology("small", nodes=2 * [Node(cpu=1)])
    t.role("trainer", "true", replicas="1:2", restart=Restart(max_restarts=1), workload=Workload(steps=60))
    result = assert_recovers(t, "node1@20s/10s", within="10s", charged={"trainer": 0})
    assert result.job.worlds["trainer"].generation >= 2


def test_a_typo_in_a_fault_is_shown_with_its_help() -> None:
    with pytest.raises(FaultError) as caught:
        assert_recovers(GANG, "trainr/1@14s")
    shown = "".join(traceback.format_exception(caught.value))
    assert "there is no 'trainr'" in shown and "help: did you mean 'trainer'?" in shown


def test_what_is_asked_wrongly_is_told_where_it_was_asked() -> None:
    asked: list[Callable[[], object]] = [
        lambda: simulate(GANG, "trainr/1@14s"),
        lambda: simulate("nowhere.py"),
        lambda: assert_recovers(GANG, "trainer/1"),
        lambda: explore(GANG, seeds=1, goodput=7),
    ]
    for ask in asked:
        with pytest.raises(FlowdistError) as caught:
            ask()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert set(names[2:]) <= {"asked"}
        assert caught.value.__suppress_context__


def test_a_role_that_is_charged_and_not_there_is_named() -> None:
    with pytest.raises(FlowdistError, match="no role 'trainr'") as caught:
        assert_recovers(GANG, "trainer/1@14s", charged={"trainr": 1})
    assert caught.value.help == "did you mean 'trainer'?"


def test_one_order_is_not_taken_for_its_letters() -> None:
    one, several = simulate(GANG, scale="trainer=2@30s"), simulate(GANG, scale=["trainer=2@30s"])
    assert one.digest == several.digest and one.job.worlds["trainer"].generation == 2
    [again] = replay_lines(GANG, (), {"drain": "node1@2m"})
    assert again.endswith("--drain node1@2m --seed 0")


def test_who_hangs_unseen_is_named_with_what_would_see_it() -> None:
    t = Topology("unwatched", nodes=2)
    t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=1))
    found = simulate(t, "trainer/0@14s:hang").violation
    assert str(found).endswith("; trainer/0 hangs, which only hang_after= of trainer would detect")


def test_what_is_demanded_and_not_so_is_named_with_the_command_that_shows_it() -> None:
    with pytest.raises(AssertionError) as caught:
        bounds = {"lost_work": "1s", "within": "1s", "goodput": 0.999, "charged": {"trainer": 0}}
        assert_recovers(GANG, "trainer/0@2m55s", "trainer/0@5h", **bounds)
    text = str(caught.value)
    for words in (
        "fault trainer/0@5h never fired",
        "incident 1 recovered after 5.1",
        "trainer lost",
        "goodput is 0.",
        "trainer was charged for 1 incidents, not 0",
        f"again: flowdist simulate {GANG} --recovers-within 1s --lost-work 1s --goodput 0.999 --seed 0 ",
    ):
        assert words in text


def test_a_property_of_the_users_is_checked_after_every_event() -> None:
    def never_more_than_three_up(job: JobState) -> bool:
        return sum(replica.is_up for replica in job.replicas.values()) <= 3

    result = simulate(GANG, always=[never_more_than_three_up])
    assert result.violation is not None
    assert result.violation.property == "always" and "never_more_than_three_up" in str(result.violation)
    assert simulate(GANG, params={"replicas": "3"}, always=[never_more_than_three_up]).violation is None


def test_what_a_topology_promises_it_keeps() -> None:
    for name in ("gang.py", "ps.py", "core.py", "actors.py", "stages.py", "rivals.py"):
        explore(TOPOLOGIES / name, seeds=12)


def test_a_campaign_says_the_same_for_any_number_of_processes() -> None:
    graph = graph_of(GANG)
    assert campaign(graph, range(1, 45)) == campaign(graph, range(1, 45), jobs=2)


def test_a_broken_promise_is_found_and_made_small() -> None:
    """With the agents' lease switched off, a node that is cut off goes on while its replicas run elsewhere."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no-fence")
    with mutated(mutant):
        report = campaign(graph_of(TOPOLOGIES / "ps.py"), range(1, 200), fail_fast=True)
    assert report.failures and report.failures[0].property == "split brain"
    assert len(report.failures[0].faults) == 1


def test_a_controller_that_raises_is_a_failure_with_a_plan_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Controller.handle

    def raising(self: Controller, event: Event, now: int) -> list[Effect]:
        if isinstance(event, NodeGone):
            raise KeyError(event.node)
        return handle(self, event, now)

    monkeypatch.setattr(Controller, "handle", raising)
    report = campaign(graph_of(GANG), range(1, 31))
    assert report.seeds == 30 and {failure.property for failure in report.failures} == {"crash"}
    failure = report.failures[0]
    assert len(failure.faults) == 1 and "KeyError('node" in failure.text and "in raising" in failure.text


def test_a_crash_that_leaves_the_books_open_is_told_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    begins = Accounts.begin_work

    def wrong(self: Accounts, members: Iterable[ReplicaId], now: int, restore_ns: int = 0) -> None:
        begins(self, members, now + self._incidents, restore_ns)
        if self._incidents:
            raise AssertionError("planted")

    monkeypatch.setattr(Accounts, "begin_work", wrong)
    report = campaign(graph_of(GANG), range(1, 31), alike_max=None)
    assert report.seeds == 30 and {failure.text for failure in report.failures} == {"planted"}


def test_the_nemesis_stays_within_what_is_declared() -> None:
    graph = graph_of(TOPOLOGIES / "core.py")
    assert tolerance_of(graph).budgets == {"ps": 0, "trainer": 2, "logger": 0}
    graph_roles = [role.name for role in graph.roles]
    nemesis = Nemesis(graph, horizon(graph))
    for seed in range(examples(40, 200)):
        plan = nemesis.plan(seed)
        assert plan == Nemesis(graph, horizon(graph)).plan(seed)
        ends = [fault for fault in plan.faults if fault.kind in ("hang", "exit", "oom")]
        ends += [
            fault for fault in plan.faults if fault.kind == "kill" and fault.target.partition("/")[0] in graph_roles
        ]
        assert len(ends) <= 2 and all(fault.target.startswith("trainer") for fault in ends)


def plans(t: Topology, seeds: int = 300) -> list[Fault]:
    nemesis = Nemesis(graph_of(t), horizon(graph_of(t)))
    return [fault for seed in range(seeds) for fault in nemesis.plan(seed).faults]


def test_the_nemesis_knows_every_way_to_end_and_nodes_that_go_together() -> None:
    t = Topology("racks", nodes=[Node(cpu=1, labels={"rack": f"r{i // 2}"}) for i in range(4)])
    t.role("trainer", "true", replicas="2:4", cpu=1, restart=Restart(max_restarts=5), workload=Workload(steps=300))
    faults = plans(t)
    assert {"kill", "exit", "oom", "leave", "lost"} <= {fault.kind for fault in faults}
    assert {"rack=r0", "rack=r1", "trainer", "trainer/3", "node2"} <= {fault.target for fault in faults}
    report = campaign(graph_of(t), range(1, 61))
    assert not report.failures and report.recoveries > 60


def test_the_nemesis_ends_nobody_in_a_way_that_is_not_to_be_survived() -> None:
    t = Topology("ruled", nodes=2)
    rules = [On("oom", do="fail"), On(exit=17, do="restart"), On("exit", do="fail")]
    t.role("trainer", "true", restart=Restart("role", max_restarts=9, rules=rules), workload=Workload(steps=300))
    faults = plans(t, 600)
    assert {fault.arg for fault in faults if fault.kind == "exit"} == {"17"}
    assert "oom" not in {fault.kind for fault in faults}


def test_a_node_is_back_before_a_role_that_has_no_room_without_it_gives_up() -> None:
    """R12: a job that waits for no more than half a minute need not survive a node that is away for a minute."""

    def longest_s(nodes: int, waits: str) -> int:
        t = Topology("impatient", nodes=nodes * [Node(cpu=1)])
        load = Workload(steps=300, startup="2s")
        policy = Restart(max_restarts=3)
        t.role("trainer", "true", replicas=2, cpu=1, pending_timeout=waits, restart=policy, workload=load)  # type: ignore[arg-type]
        assert not campaign(graph_of(t), range(1, 31)).failures
        away = [fault.duration_ns for fault in plans(t) if fault.target.startswith("node") and fault.kind == "kill"]
        return max((ns or 0 for ns in away), default=0) // SECOND

    assert longest_s(2, "30s") == 5
    assert longest_s(2, "10s") == 0
    assert longest_s(2, "10m") > 50 and longest_s(8, "10s") > 50


def test_a_job_gets_on_while_one_works_for_whose_success_a_primary_task_waits() -> None:
    """Directly, or because what it depends on waits for it."""
    t = Topology("stages", nodes=2)
    load = Workload(steps=900, startup="1s", checkpoint_every="20s")
    prepare = t.role("prepare", "true", primary=False, restart=Restart(max_restarts=3), workload=load)
    restart = Restart("replica", max_restarts=3)
    serve = t.role("serve", "true", kind="service", depends_on=prepare.succeeded(), restart=restart)
    t.role("train", "true", depends_on=serve.started(), restart=Restart(max_restarts=3), workload=Workload(steps=30))
    assert not campaign(graph_of(t), range(1, 16)).failures


def test_the_nemesis_draws_what_becomes_of_peers_where_the_topology_does_not_say() -> None:
    def drawn(*roles: tuple[Restart | None, str | None], joint: bool = False, gang: bool = True) -> set[str]:
        t = Topology("drawn", nodes=2 * [Node(cpu=8)])
        made = [
            t.role(f"r{n}", "true", replicas=2, gang=gang, restart=policy, workload=Workload(collective=how))  # type: ignore[arg-type]
            for n, (policy, how) in enumerate(roles)
        ]
        if joint:
            t.world("both", *made)
        nemesis = Nemesis(graph_of(t), 1)
        return {nemesis.collective(seed) for seed in range(40)}

    again, strict = Restart(max_restarts=3), Restart(max_restarts=3, rules=[On(exit=1, do="fail")])
    assert drawn((again, None)) == drawn((None, None)) == drawn((again, "hang"), (again, None)) == {"", "fail", "hang"}
    assert drawn((again, "wait")) == drawn((again, None), gang=False) == {""}
    assert drawn((strict, None)) == {"", "hang"}, "an exit with 1 is to fail the job"
    assert drawn((again, None), (None, None), joint=True) == {"", "hang"}, "the second dies with the first, and may not"


def test_only_a_failure_that_needs_hanging_peers_says_so(tmp_path: Path) -> None:
    path = tmp_path / "small.py"
    path.write_text(
        "from flowdist import Node, Restart, Topology, Workload\n"
        "t = Topology('small', nodes=[Node(cpu=2)])\n"
        "t.role('a', 'true', replicas=2, restart=Restart(max_restarts=2), workload=Workload(steps=99, startup='1s'))\n"
    )
    graph = graph_of(path)
    report = campaign(graph, range(1, 31), bounds=bounds_of("2s", None, None))
    assert set(report.collectives) == {"fail", "hang"} and sum(report.collectives.values()) < report.seeds == 30
    hung = next(failure for failure in report.failures if failure.collective)  # others failed twice in a row
    command = replay_command(str(path), ["--recovers-within", "2s"], hung)
    assert "--collective hang" in command and len(hung.faults) == 1
    again = flowdist(*command.split()[1:])
    assert again.returncode == 3 and "not within 2s" in again.stderr, again
    assert flowdist(*command.replace("hang", "wait").split()[1:]).returncode == 0
    hasty = campaign(graph, range(1, 31), bounds=bounds_of("500ms", None, None))
    assert hasty.failures and {failure.collective for failure in hasty.failures} == {""}


def test_the_nemesis_drains_no_node_that_the_minima_need() -> None:
    """What is drained never comes back."""
    t = Topology("tight", nodes=3 * [Node(cpu=1)])
    t.role("trainer", "true", replicas="2:3", cpu=1, restart=Restart(max_restarts=3), workload=Workload(steps=60))
    nemesis = Nemesis(graph_of(t), horizon(graph_of(t)))
    plans = [nemesis.plan(seed).faults for seed in range(300)]
    drained = [len({fault.target for fault in faults if fault.kind == "drain"}) for faults in plans]
    assert max(drained) == 1 and sum(drained) > 20
    t.role("other", "true", cpu=1, apart=True, replicas=1)
    nemesis = Nemesis(graph_of(t), horizon(graph_of(t)))
    assert not any(fault.kind == "drain" for seed in range(300) for fault in nemesis.plan(seed).faults)


def test_the_nemesis_drains_no_node_when_kept_seats_fill_the_others() -> None:
    def drained(*, gang: bool) -> int:
        t = Topology("seats", nodes=2 * [Node(cpu=4)])
        load = Workload(steps=300, startup="2s")
        often = Restart("replica" if not gang else "role", max_restarts=3)
        t.role("reader", "true", replicas="1:4", gang=gang, restart=often, workload=load)
        t.role("trainer", "true", replicas=2, restart=Restart(max_restarts=3), workload=load)
        return sum(fault.kind == "drain" for fault in plans(t))

    assert drained(gang=False) == 0 and drained(gang=True) > 20


def seeds_in(corpus: Corpus) -> list[int]:
    return list(dict.fromkeys(known.seed for known in corpus.known()))


def test_failing_seeds_are_kept_once_and_tried_first(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "deep/corpus.jsonl")
    assert seeds_in(corpus) == []
    corpus.keep([Failure(7, "survives", "x", ("node0@3s",)), Failure(3, "liveness", "y", ())])
    corpus.keep([Failure(7, "survives", "x", ())])
    assert seeds_in(corpus) == [7, 3]
    path = tmp_path / "deep/corpus.jsonl"
    path.write_text(path.read_text() + "not a line\n{}\n")
    assert seeds_in(corpus) == [7, 3]


def flowdist(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "flowdist", *arguments)


def python(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=False, cwd=cwd, capture_output=True, text=True)


def test_exploring_from_the_command_line() -> None:
    done = flowdist("simulate", GANG, "--explore", "30", "--jobs", "2")
    assert done.returncode == 0 and "30 of 30 seeds hold" in done.stdout
    content = json.loads(flowdist("simulate", GANG, "--seeds", "1:5", "--json").stdout)
    assert content["kind"] == "exploration" and content["seeds"] == 5 and content["failures"] == []
    weak = ("simulate", str(TOPOLOGIES / "ps.py"), "--set", "lease=2s", "--set", "heartbeat=990ms", "--seeds", "28")
    done = flowdist(*weak)
    assert done.returncode == 3 and "seed 28: survives" in done.stdout
    command = next(line for line in done.stdout.splitlines() if "again:" in line).partition("again: flowdist ")[2]
    again = flowdist(*command.split())
    assert again.returncode == 1 and "changes of membership" in again.stdout
    assert flowdist("simulate", GANG, "--seeds", "x").returncode == 2
    assert flowdist("simulate", GANG, "--seeds", "9:3").returncode == 2


def test_the_replay_line_is_safe_in_a_shell() -> None:
    line = replay_command("my job.py", ["-p", "a=b c"], Failure(3, "", "", ("node1@3s", "zone=a@5s")))
    assert line == "flowdist simulate 'my job.py' -p 'a=b c' --seed 3 --fail node1@3s --fail zone=a@5s"


@pytest.mark.slow
def test_the_plugin_gives_a_fixture_and_a_line_to_see_a_failure_again(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        f"GANG = {GANG!r}\n"
        "def test_good(simulate):\n"
        "    assert simulate(GANG, 'trainer/0@1m').job.outcome == 'succeeded'\n"
        "def test_bad(simulate):\n"
        "    assert simulate(GANG, 'trainer/0@1m', params={'max_restarts': 0}).job.outcome == 'succeeded'\n"
    )
    command = ["-m", "pytest", "-p", "no:cacheprovider", "--flowdist-seed", "5", "--junitxml", "out.xml"]
    done = python(*command, "-p", "flowdist.testing.plugin", cwd=tmp_path)
    if "already registered" in done.stderr:  # it is installed with its entry point
        done = python(*command, cwd=tmp_path)
    again = f"flowdist simulate {GANG} -p max_restarts=0 --seed 5 --fail trainer/0@1m"
    assert "1 failed, 1 passed" in done.stdout and again in done.stdout, done.stdout + done.stderr
    assert (tmp_path / "out.xml").is_file()


HYPOTHETICAL = """
from hypothesis import HealthCheck, given, settings
from flowdist.testing import graph_of, simulate as run
from flowdist.testing.strategies import fault_plans

GRAPH = graph_of("gang.py")
QUICK = dict(max_examples=40, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))

@given(fault_plans(GRAPH))
@settings(**QUICK)
def test_of_a_graph(plan):
    assert run(GRAPH, plan, until="1h").job.worlds["trainer"].generation < 2

@given(plan=fault_plans(GRAPH))
@settings(**QUICK)
def test_with_the_fixture(simulate, plan):
    assert simulate("gang.py", plan, until="1h").job.worlds["trainer"].generation < 2

@given(plan=fault_plans(GRAPH))
@settings(**QUICK)
def test_with_parameters(plan):
    graph = graph_of("gang.py", {"replicas": "3"})
    assert run(graph, plan, until="1h").job.worlds["trainer"].generation < 2
"""


@pytest.mark.slow
def test_hypothesis_shows_the_command_of_the_shrunk_example_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "gang.py").write_text((TOPOLOGIES / "gang.py").read_text())
    (tmp_path / "test_mine.py").write_text(HYPOTHETICAL)
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rN"]  # in CI a summary says all again
    done = python(*command, "-p", "flowdist.testing.plugin", cwd=tmp_path)
    if "already registered" in done.stderr:  # it is installed with its entry point
        done = python(*command, cwd=tmp_path)
    assert "3 failed" in done.stdout, done.stdout + done.stderr
    lines = [line.partition("see it again: ")[2] for line in done.stdout.splitlines() if "see it again: " in line]
    assert len(lines) == 2, "what was compiled with parameters cannot be named"
    for line in lines:
        assert line.startswith("flowdist simulate gang.py --until 1h ") and line.count("@") == 1
        again = python("-m", *line.split(), "--json", cwd=tmp_path)
        assert json.loads(again.stdout)["roles"]["trainer"]["generations"] == 2


def test_a_topology_is_shown_without_what_it_has_by_default() -> None:
    assert repr(Cluster((NodeSpec("a"),))) == "Cluster(nodes=(NodeSpec(name='a'),))"
