"""`flowdist explain`: codes, failures, JSON, and arguments that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flowdist.cli.inspect.topologies import explain as command
from flowdist.cli.simulate.simulate import command as simulate

TOPOLOGIES = Path(__file__).parents[2] / "scenarios/topologies"
PS, STAGES = str(TOPOLOGIES / "ps.py"), str(TOPOLOGIES / "stages.py")


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.mark.parametrize("code", ["FD112", "fd112"])
def test_a_code_is_explained_by_its_section(code: str) -> None:
    assert explain(code).stdout == (
        "FD112: A replica larger than any node\n\n"
        "No node can ever take a replica of this role. Ask for less, or declare larger nodes.\n"
    )


def test_a_code_as_json() -> None:
    content = json.loads(explain("fd112", "--json").stdout)
    assert (content["format"], content["kind"], content["code"]) == (1, "code", "FD112")
    assert content["title"] == "A replica larger than any node" and content["text"].startswith("No node")


SERVER_IS_KILLED = """\
ps/0 is killed by signal SIGKILL: the job continues

Why
  ps  its policy is restart the replica, 3 times within 1h, then fail

What restarts
  ps/0     the scope of the policy of ps is "replica"
  trainer  its gate on ps says on_restart="restart"

In which order
  stopped, all at once, dependents first:
    1. trainer (SIGKILL after 2s)
  started, when all of it is gone, and the back-off is over:
    1. ps/0
    2. trainer (after ps ready)

What is charged
  ps is charged 1 of its 3 restarts within 1h, once all of it runs again
  back-off: none before the first restart, then 1s, doubling up to 1m; reset after 10m
  when the budget is used up: the job fails

What reconnects
  evaluator  its gate on trainer says on_restart="reconnect"; if it fails meanwhile, it restarts in an incident of its own, which costs nothing within 2s (R7)

What is not affected
  ps/1  replicas of a role without gang restart one by one
"""  # noqa: E501


def test_a_failure_is_told_in_words() -> None:
    assert explain(PS, "--fail", "ps/0").stdout == SERVER_IS_KILLED


def test_the_page_in_docs_shows_what_is_told() -> None:
    page = (TOPOLOGIES.parents[1] / "docs/explain.md").read_text()
    assert f"```\n{SERVER_IS_KILLED}```" in page
    assert f"```\n{explain(PS, '--fail', 'node0').stdout}```" in page


def test_the_parameters_and_overrides_of_the_topology_count() -> None:
    told = explain(PS, "--fail", "ps/0", "-p", "on_restart=reconnect", "--set", "ps.restart.max_restarts=7").stdout
    assert "ps is charged 1 of its 7 restarts" in told and "(after ps ready)" not in told


def test_several_failures_are_told_one_by_one() -> None:
    told = explain(PS, "--fail", "ps/0", "--fail", "trainer/0:oom").stdout
    assert told.startswith(SERVER_IS_KILLED + "\n") and 'On("oom", do="fail") is the first rule that matches' in told


def test_a_lost_node_hits_who_is_seated_there() -> None:
    content = json.loads(explain(PS, "--fail", "node3", "--json").stdout)
    assert (content["format"], content["kind"]) == (1, "explanation")
    (told,) = content["failures"]
    assert told["hits"] == ["trainer/1"] and [entry["who"] for entry in told["restarts"]] == ["trainer"]
    assert told["charged"] is None and told["verdicts"][0]["counted"] is False


def test_everything_that_simulate_takes_as_a_target_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    file.write_text(
        "from flowdist import Node, Restart, Topology\n"
        't = Topology("x", nodes=[Node(labels={"zone": zone}) for zone in "aab"])\n'
        't.role("main", "true", replicas="1:2x2", restart=Restart("role", max_restarts=1))\n'
    )
    for target in ("main", "main/0", "main/0.1", "all", "node1", "zone=a", "controller"):
        done = explain(str(file), "--fail", target)
        assert done.exit_code == 0 and "the job continues" in done.stdout, (target, done.stderr)
        fault = f"{target}@20s:{'kill' if target != 'zone=a' else 'lost'}"
        played = CliRunner().invoke(simulate, [str(file), "--fail", fault])
        assert played.exit_code == 0, (target, played.stderr)
    assert explain(str(file), "--fail", "zone=a").stdout.startswith(
        "node0, node1 (zone=a) are gone: the job continues\n"
    )


def test_a_job_without_nodes_is_all_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    file.write_text('from flowdist import Topology\nt = Topology("x")\nt.role("main", "true", replicas=2)\n')
    done = explain(str(file), "--fail", "node0")
    assert done.exit_code == 0 and "main has 0 of 2 left, and needs 2; the other nodes have no room" in done.stdout
    done = explain(str(file), "--fail", "node1")
    assert done.exit_code == 2 and "there is no 'node1'" in done.stderr


def test_a_node_that_is_taken_away_and_a_rank_that_hangs_are_told(tmp_path: Path) -> None:
    told = explain(PS, "--fail", "node1:preempt", "--fail", "node0:drain").stdout
    assert told.startswith("node1 is taken away: the job continues\n") and "\nnode0 is drained by the operator:" in told
    told = explain(PS, "--fail", "trainer/0:hang", "--set", "trainer.hang_after=1m").stdout
    assert told.startswith("trainer/0 hangs: no sign of it for 1m: the job continues\n")
    assert 'give it hang_after=, such as "10m"' in explain(PS, "--fail", "trainer/0:hang").stderr


def test_joint_worlds_and_wider_restarts_are_told(tmp_path: Path) -> None:
    file = tmp_path / "topology.py"
    file.write_text(
        "from flowdist import Restart, Topology\n"
        't = Topology("x", nodes=2)\n'
        'wide = Restart("role", max_restarts=1, then=Restart("job", max_restarts=2))\n'
        't.world("rpc", t.role("ps", "true", restart=wide), t.role("trainer", "true"))\n'
        't.role("reader", "true")\n'
    )
    told = explain(str(file), "--fail", "ps/0").stdout
    assert '  trainer  it is in the world "rpc" with ps, which re-forms as one\n' in told
    end = "restart the job, 2 times, then fail; that restarts ps, trainer, reader"
    assert f"  when the budget is used up: {end}\n" in told


def test_who_has_not_started_is_not_touched() -> None:
    told = explain(STAGES, "--fail", "node0").stdout
    assert "actor  it has not started by then: it waits for reader to succeed" in told


def test_a_topology_may_be_named_like_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fdx").write_text('from flowdist import Topology\nt = Topology("x")\nt.role("main", "true")\n')
    monkeypatch.chdir(tmp_path)
    assert "main/0 is killed" in explain("fdx", "--fail", "main/0").stdout


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        (["FD1112"], "there is no code 'FD1112'", 'did you mean "FD112"?'),
        (["FD"], "there is no code 'FD'", "docs/errors.md lists all codes, from FD101 to FD3"),
        (["FD999"], "there is no code 'FD999'", "docs/errors.md lists all codes, from FD101 to FD3"),
        (["FD113x"], "there is no code 'FD113x'", 'did you mean "FD113"?'),
        (["FD112", "--fail", "ps/0"], "FD112 is an error code, no topology", "write flowdist explain FD112"),
        ([PS], "nothing to explain: neither an error code nor a --fail", "--fail ps/0"),
        ([PS, "--fail", "pss/0"], "--fail pss/0: there is no 'pss'", 'did you mean "ps"?'),
        ([PS, "--fail", "ps/0:exti=2"], "--fail ps/0:exti=2: kind 'exti' is unknown", 'did you mean "exit"?'),
        (["nope.py", "--fail", "ps/0"], "no topology file 'nope.py'", "name a topology file"),
    ],
)
def test_a_mistake_is_told_in_words(arguments: list[str], message: str, help: str) -> None:
    done = explain(*arguments)
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert message in done.stderr and help in done.stderr


def test_a_mistake_as_json() -> None:
    done = explain("fd999", "--json")
    assert done.exit_code == 2 and json.loads(done.stdout)["problems"][0]["message"] == "there is no code 'fd999'"
